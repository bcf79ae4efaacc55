"""Functions and methods of tensors under PyTorch's names."""

from nnmpi.addons import AddOn, places

_FUNCTIONS_AND_METHODS = places(
    {
        "autograd.functions.elementwise": "addcdiv addcmul atan cumprod div lerp log2 nan_to_num",
        "autograd.functions.formulas": "logical_and logical_not logical_or logical_xor logsumexp"
        " reciprocal rsqrt square",
        "autograd.functions.gathering": "gather index_add index_select masked_select scatter"
        " scatter_add scatter_reduce take_along_dim",
        "autograd.functions.measuring": "bincount equal histc nonzero norm unique",
        "autograd.functions.ordering": "argsort kthvalue median mode quantile sort topk",
        "autograd.functions.products": "kron outer",
        "autograd.functions.rearranging": "diag flip moveaxis movedim narrow repeat_interleave roll"
        " select tile unbind",
        "autograd.functions.rounding": "ceil floor round sign trunc",
        "autograd.functions.triangles": "tril triu",
        "autograd.functions.type_limits": "is_floating_point",
        "nn.random_writes": "bernoulli",
    }
)
"""Rows for functions in nnmpi that are also methods of tensors."""

ADD_ON = AddOn(
    modules=(
        *("nnmpi.autograd.functions", "nnmpi.autograd.declared", "nnmpi.nn.random_writes"),
        *(
            f"nnmpi.autograd.ops.{name}"
            for name in (
                *("arrange", "distance", "einsum", "gather", "more_elementwise", "order"),
                *("rounding", "scatter_reduce"),
            )
        ),
    ),
    uses=("nn_functions",),
    rows={
        "tensor_methods": _FUNCTIONS_AND_METHODS
        | places(
            {
                "autograd.functions.gathering": "index_add_ scatter_ scatter_add_ scatter_reduce_",
                "autograd.functions.in_place": "abs_ add_ addcdiv_ addcmul_ atan_ ceil_ clamp_"
                " clamp_max_ clamp_min_ copy_ cos_ cumprod_ cumsum_ div_ exp_ fill_"
                " fill_diagonal_ floor_ lerp_ log2_ log_ masked_fill_ mul_ nan_to_num_ neg_"
                " pow_ relu_ remainder_ round_ sigmoid_ sin_ sqrt_ sub_ tanh_ zero_",
                "autograd.functions.rearranging": "repeat unflatten unfold",
                "autograd.functions.same_kind": "new_empty new_full new_ones new_tensor new_zeros",
                "autograd.functions.retained": "retain_grad",
                "autograd.functions.type_limits": "is_contiguous stride",
                "autograd.functions.typed": "type type_as",
                "nn.random_writes": "bernoulli_ exponential_ multinomial normal_ uniform_",
            }
        ),
        "names": _FUNCTIONS_AND_METHODS
        | places(
            {
                "autograd.functions.grad_modes": "enable_grad inference_mode is_grad_enabled"
                " set_grad_enabled",
                "autograd.functions.joining": "hstack vstack",
                "autograd.functions.measuring": "cdist",
                "autograd.functions.products": "einsum",
                "autograd.functions.rearranging": "meshgrid",
                "autograd.functions.triangles": "tril_indices triu_indices",
                "autograd.functions.type_limits": "finfo iinfo",
                "autograd.functions.typed": "BoolTensor ByteTensor CharTensor DoubleTensor"
                " FloatTensor HalfTensor IntTensor LongTensor ShortTensor is_tensor",
            }
        )
        | places(
            {
                "autograd.functions.custom_function": "Function",
                "autograd.functions.differentiation": "grad",
                "autograd.functions.grad_modes": "enable_grad inference_mode set_grad_enabled",
                "autograd.functions.gradcheck": "gradcheck",
                "autograd.functions.typed": "Variable",
            },
            "autograd.",
        )
        | places({"autograd.functions.gathering": "one_hot"}, "nn.functional."),
    },
)
