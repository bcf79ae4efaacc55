"""All that exists for programs written for PyTorch: its functions and methods of tensors, more
layers, losses and optimizers, functional, init, autocast, settings, loaders of data, schedulers,
distributions, files, and loops of one's own on several ranks.

functions/, ops/, declared.py, random_writes.py   functions and methods of tensors
layers/, losses.py, norms.py, vectors.py          more layers, losses, and functions of `nn.utils`
functional.py, layer_functions.py, init.py        `nn.functional`, `nn.init`
amp.py, autocasting.py, accelerator.py, cuda/, backends/, jit.py, memory_formats.py
                                                  how a program computes
optim/, utils/                                    optimizers, schedulers, loaders of data
memory/                                           what programs do with memory that tensors share
distributed/, parallel.py                         `torch.distributed`, DistributedDataParallel
distributions/, files/                            distributions; nested states and files of PyTorch
"""

from nnmpi.addons import AddOn, places


def _places(modules: dict[str, str], package: str = "") -> dict[str, str]:
    """Returns rows of `names` for modules in this folder."""
    return places({f"addons.torchlike.{m}": names for m, names in modules.items()}, package)


_PUBLIC = {
    name: f"nnmpi.addons.torchlike.{name.removeprefix('nn.')}"
    for name in (
        *("accelerator", "amp", "backends", "cuda", "cuda.amp", "distributed", "distributions"),
        *("jit", "nn.functional", "nn.init", "nn.parallel", "optim.lr_scheduler"),
        *("optim.swa_utils", "utils", "utils.data.distributed"),
    )
}
"""Modules that programs import by PyTorch's names, and those that they reach without an import."""

_FUNCTIONS_AND_METHODS = _places(
    {
        "functions.elementwise": "addcdiv addcmul atan cumprod div lerp log2 nan_to_num",
        "functions.formulas": "logical_and logical_not logical_or logical_xor logsumexp"
        " reciprocal rsqrt square",
        "functions.gathering": "gather index_add index_select masked_select scatter"
        " scatter_add scatter_reduce take_along_dim",
        "functions.measuring": "bincount equal histc nonzero norm unique",
        "functions.ordering": "argsort kthvalue median mode quantile sort topk",
        "functions.products": "kron outer",
        "functions.rearranging": "diag flip moveaxis movedim narrow repeat_interleave roll"
        " select tile unbind",
        "functions.rounding": "ceil floor round sign trunc",
        "functions.triangles": "tril triu",
        "functions.type_limits": "is_floating_point",
        "random_writes": "bernoulli",
    }
)
"""Rows for functions in nnmpi that are also methods of tensors."""

_METHODS = _places(
    {
        "functions.gathering": "index_add_ scatter_ scatter_add_ scatter_reduce_",
        "functions.in_place": "abs_ add_ addcdiv_ addcmul_ atan_ ceil_ clamp_ clamp_max_"
        " clamp_min_ copy_ cos_ cumprod_ cumsum_ div_ exp_ fill_ fill_diagonal_ floor_ lerp_"
        " log2_ log_ masked_fill_ mul_ nan_to_num_ neg_ pow_ relu_ remainder_ round_ sigmoid_"
        " sin_ sqrt_ sub_ tanh_ zero_",
        "functions.rearranging": "repeat unflatten unfold",
        "functions.same_kind": "new_empty new_full new_ones new_tensor new_zeros",
        "functions.retained": "retain_grad",
        "functions.type_limits": "is_contiguous stride",
        "functions.typed": "type type_as",
        "random_writes": "bernoulli_ exponential_ multinomial normal_ uniform_",
    },
    "Tensor.",
)
"""Rows for functions that are only methods of tensors, with the tensor as their first argument."""


_LAYERS = {
    **{
        f"nn.{kind}Pad{axes}d": f"nnmpi.addons.torchlike.layers.padding:{kind}Pad{axes}d"
        for kind in ("Circular", "Constant", "Reflection", "Replication", "Zero")
        for axes in (1, 2)
    },
    **_places(
        {
            "layers.distances": "CosineEmbeddingLoss CosineSimilarity MarginRankingLoss"
            " PairwiseDistance TripletMarginLoss",
            "layers.embedding_bag": "EmbeddingBag",
            "layers.more_activations": "Hardsigmoid Hardswish Hardtanh LogSigmoid Mish ReLU6 SELU"
            " Softsign",
            "layers.padding": "PixelShuffle PixelUnshuffle Unflatten",
            "losses": "BCELoss BCEWithLogitsLoss HuberLoss KLDivLoss SmoothL1Loss",
        },
        "nn.",
    ),
    **_places(
        {
            "layers.distances": "cosine_similarity normalize pairwise_distance triplet_margin_loss",
            "layers.more_activations": "hardsigmoid hardswish hardtanh logsigmoid mish relu6 selu"
            " softsign",
            "losses": "binary_cross_entropy binary_cross_entropy_with_logits huber_loss kl_div"
            " smooth_l1_loss",
        },
        "nn.functional.",
    ),
    **_places(
        {
            "norms": "remove_spectral_norm remove_weight_norm spectral_norm weight_norm",
            "vectors": "parameters_to_vector vector_to_parameters",
        },
        "nn.utils.",
    ),
}

_OPTIMIZERS = ("ASGD", "Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam")

ADD_ON = AddOn(
    modules=("nnmpi.addons.torchlike", "nnmpi.run.__main__"),
    of_step=tuple(
        f"nnmpi.addons.torchlike.{name}"
        for name in (
            *("autocasting", "declared", "functional", "functions", "layer_functions"),
            *("layers", "losses", "norms", "ops", "parallel", "random_writes"),
            *("utils.checkpoint", "vectors"),
        )
    ),
    classes_of_step=tuple(
        f"nnmpi.addons.torchlike.{name}" for name in ("autocasting", "declared", "functions", "ops")
    ),
    rows={
        "options": {"torchlike": "nnmpi.addons.torchlike.options:ADDED"},
        "comm_callers": {"distributed": "nnmpi.addons.torchlike.distributed"},
        "memory": {
            name: f"nnmpi.addons.torchlike.memory.{module}:{name}"
            for module, names in {
                "joined_memory": "assign_data leave_values made",
                "kept_gradients": "kept_gradient leave_gradient",
                "renewal": "renew",
                "reshaped_copies": "contiguous note_copy note_reshaped",
                "shared_writes": "copied is_at keeps_written may_write write",
            }.items()
            for name in names.split()
        },
        "names": {
            **_PUBLIC,
            **_LAYERS,
            **{f"Tensor.{name}": where for name, where in _FUNCTIONS_AND_METHODS.items()},
            **_METHODS,
            **_places(
                {
                    "autocasting": "autocast get_autocast_dtype is_autocast_enabled",
                    "distributed.replicas": "verify",
                    "memory_formats": "channels_last contiguous_format preserve_format",
                }
            ),
            **_places({"optim.adaptive": " ".join((*_OPTIMIZERS, "Rprop"))}, "optim."),
            **_places({"optim.lbfgs": "LBFGS"}, "optim."),
            **_places({"distributed.sampler": "DistributedSampler"}, "utils.data."),
            **(
                _FUNCTIONS_AND_METHODS
                | _places(
                    {
                        "functions.grad_modes": "enable_grad inference_mode is_grad_enabled"
                        " set_grad_enabled",
                        "functions.joining": "hstack vstack",
                        "functions.measuring": "cdist",
                        "functions.products": "einsum",
                        "functions.rearranging": "meshgrid",
                        "functions.triangles": "tril_indices triu_indices",
                        "functions.type_limits": "finfo iinfo",
                        "functions.typed": "BoolTensor ByteTensor CharTensor DoubleTensor"
                        " FloatTensor HalfTensor IntTensor LongTensor ShortTensor is_tensor",
                    }
                )
                | _places(
                    {
                        "functions.custom_function": "Function",
                        "functions.differentiation": "grad",
                        "functions.grad_modes": "enable_grad inference_mode set_grad_enabled",
                        "functions.gradcheck": "gradcheck",
                        "functions.typed": "Variable",
                    },
                    "autograd.",
                )
                | _places({"functions.gathering": "one_hot"}, "nn.functional.")
            ),
        },
        "modules": {
            **_PUBLIC,
            "autograd.replacements": "nnmpi.addons.torchlike.replacements",
            "autograd.functions": "nnmpi.addons.torchlike.functions",
            "nn.layers.distances": "nnmpi.addons.torchlike.layers.distances",
            "nn.layers.embedding_bag": "nnmpi.addons.torchlike.layers.embedding_bag",
            "nn.layers.more_activations": "nnmpi.addons.torchlike.layers.more_activations",
            "nn.layers.padding": "nnmpi.addons.torchlike.layers.padding",
            "nn.more_losses": "nnmpi.addons.torchlike.losses",
            "optim.adaptive": "nnmpi.addons.torchlike.optim.adaptive",
            "optim.cycles": "nnmpi.addons.torchlike.optim.cycles",
            "optim.lbfgs": "nnmpi.addons.torchlike.optim.lbfgs",
            "optim.scheduler": "nnmpi.addons.torchlike.optim.scheduler",
        },
        "op_types": {  # ops of layers that ranks divide
            f"nnmpi.parallel.tensor.layers:{op}": "nnmpi.addons.torchlike.autocasting:is_product"
            for op in ("column", "gathering_linear", "row")
        },
        "optimizers": {
            name.lower(): f"nnmpi.addons.torchlike.optim.adaptive:{name}" for name in _OPTIMIZERS
        },
        "state_files": {
            "nested": "nnmpi.addons.torchlike.files.nested",
            "streams": "nnmpi.addons.torchlike.files.streams",
            "pickle": "nnmpi.addons.torchlike.files.torch_files.reading:read",
            "torch": "nnmpi.addons.torchlike.files.torch_files.writing:write",
            "tensors": "nnmpi.addons.torchlike.files.torch_files.tensors:tensors",
        },
    },
)
