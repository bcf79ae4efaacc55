"""MixtureOfExperts: several two-layer networks, of which each token uses a few."""

from nnmpi.addons.layer_ways import expert_ops as experts
from nnmpi.arrays.backend import xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.nn import initial
from nnmpi.nn.layers.basic import check_choice, check_sizes
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import Pass, current_pass


class Router(Module):
    """A linear layer and softmax that give each token (N, ..., width) its gates (N, ...,
    num_experts), a weight for each expert, 0 except for the chosen ones, as `route` does."""

    last_axis = "experts"

    def __init__(
        self, width: int, num_experts: int, top_k: int, capacity_factor: float, auxiliary: float
    ) -> None:
        self.top_k, self.capacity_factor = top_k, float(capacity_factor)
        self.auxiliary = float(auxiliary)
        self.weight = Parameter.lazy((num_experts, width), initial.fan_in(width))

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        if x.ndim < 2 or x.shape[-1] != self.weight.shape[1]:
            raise ValueError(
                f"MixtureOfExperts {self.path}: input of shape {x.shape}: it takes (N, "
                f"{self.weight.shape[1]}) or (N, T, {self.weight.shape[1]})"
            )
        if x.dtype == "float16" and self.auxiliary:
            raise ValueError(
                "MixtureOfExperts: in float16 the gradient of the auxiliary loss would not be "
                "scaled as the training loss is: use --dtype bfloat16, or auxiliary=0"
            )
        return apply(experts.route, x, self.weight, **self.options(x))

    def options(self, x: Tensor) -> dict[str, object]:
        """Returns the keyword arguments with which the op `route` is called for x."""
        batch = (current_pass.get() or Pass(0)).batch
        return {
            "top_k": self.top_k,
            "factor": self.capacity_factor,
            "auxiliary": self.auxiliary,
            "samples": len(x) if batch is None else batch,
        }

    def extra_repr(self) -> str:
        return f"{self.top_k} of {len(self.weight)}, capacity_factor={self.capacity_factor}"


class Experts(Module):
    """Several two-layer networks, each applied to the tokens for which its gate is not 0."""

    def __init__(
        self, width: int, hidden: int, num_experts: int, top_k: int, factor: float, activation: str
    ) -> None:
        self.num_experts, self.top_k, self.capacity_factor = num_experts, top_k, float(factor)
        self.activation = activation
        self.weight1 = Parameter.lazy((num_experts, hidden, width), initial.fan_in(width))
        self.bias1 = Parameter.lazy((num_experts, hidden), initial.fan_in(width))
        self.weight2 = Parameter.lazy((num_experts, width, hidden), initial.fan_in(hidden))
        self.bias2 = Parameter.lazy((num_experts, width), initial.fan_in(hidden))

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        weights = self.weight1, self.bias1, self.weight2, self.bias2
        return apply(experts.experts, x, gates, *weights, **self.options(x))

    def options(self, x: Tensor) -> dict[str, object]:
        """Returns the keyword arguments with which the op `experts` is called for x."""
        tokens, E = experts.tokens_of(x), self.num_experts
        slots = experts.slots_of(tokens, E, self.top_k, self.capacity_factor)
        return {"slots": slots, "activation": self.activation}

    def extra_repr(self) -> str:
        _, hidden, width = self.weight1.shape
        return f"{self.num_experts} x {width}-{hidden}-{width}, {self.activation}"


class MixtureOfExperts(Module):
    """The sum of the outputs of `top_k` of `num_experts` networks for each token, weighted by a
    router.

    x  (N, width) or (N, T, width); y has the same shape

        gates = softmax(x router^T), for the top_k experts of each token, divided by their sum
        y     = sum over these of  gate_e (weight2_e act(weight1_e x + bias1_e) + bias2_e)

    An expert takes at most ceil(capacity_factor top_k T / num_experts) tokens of each sample, the
    first ones. It adds nothing to further tokens, so put a shortcut around the layer. The capacity
    is one per sample, never per batch, so the result does not depend on ranks or micro-batches.
    With x (N, width) a sample is a single token, which every chosen expert takes.

    A loss that balances the experts, times `auxiliary`, is added to the training loss; it is a mean
    over the samples of the whole batch, whatever the training loss is divided by. Only gradients
    contain it, and not the loss that is printed; `balance(x)` returns its value.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        num_experts: int,
        top_k: int = 2,
        capacity_factor: float = 1.25,
        auxiliary: float = 0.01,
        activation: str = "gelu",
    ) -> None:
        sizes = {"width": width, "hidden": hidden, "num_experts": num_experts, "top_k": top_k}
        check_sizes("MixtureOfExperts", 1, **sizes)
        if top_k > num_experts:
            raise ValueError(
                f"MixtureOfExperts: top_k={top_k} of {num_experts} experts: give at most "
                f"{num_experts}"
            )
        if not capacity_factor > 0 or not auxiliary >= 0:
            raise ValueError(
                f"MixtureOfExperts: capacity_factor={capacity_factor} must be above 0, and "
                f"auxiliary={auxiliary} at least 0"
            )
        check_choice("MixtureOfExperts", "activation", activation, experts.ACTIVATIONS)
        self.router = Router(width, num_experts, top_k, capacity_factor, auxiliary)
        self.experts = Experts(width, hidden, num_experts, top_k, capacity_factor, activation)

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        y: Tensor = self.experts(x, self.router(x))
        return y

    def balance(self, x: Tensor) -> float:
        """Returns the auxiliary loss of these samples, without its coefficient: 1 if the experts
        are equally loaded, and num_experts / top_k if all tokens choose the same experts with
        certainty."""
        a, w = as_tensor(x).array, self.router.weight.array
        dtype = types_of(a.dtype).sums
        p = experts.probabilities(a.astype(dtype), w.astype(dtype))
        share = experts.choices(p, self.router.top_k).mean(axis=1, dtype=dtype) / self.router.top_k
        each = (share * p.mean(axis=1)).sum(axis=-1) * p.shape[-1]
        return float(xp_of(each).mean(each))
