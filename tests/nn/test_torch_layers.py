"""Every layer, loss and model against the same one of PyTorch, in float64."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnmpi
from nnmpi import nn
from nnmpi.nn.models import MODELS, mlp

TOLERANCE = 1e-12  # relative to the largest number of a tensor, or of all gradients


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip(
        "torch", reason="PyTorch is not installed: NNMPI_WITH_TORCH=1 scripts/test installs it"
    )


def twin(t: Any, m: nn.Module) -> Any:
    """The module of PyTorch (`t` is torch.nn) that is built as m is."""
    name = type(m).__name__
    make = getattr(t, name)
    if isinstance(m, nn.Sequential):
        return make(*(twin(t, layer) for layer in m))
    if isinstance(m, nn.Linear):
        return make(m.in_features, m.out_features, bias=m.bias is not None)
    if isinstance(m, nn.Conv2d):
        sizes = (m.in_channels, m.out_channels, m.kernel_size, m.stride, m.padding)
        return make(*sizes, bias=m.bias is not None)
    if isinstance(m, nn.MaxPool2d | nn.AvgPool2d):
        return make(m.kernel_size, m.stride, m.padding)
    if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d):
        return make(m.num_features, m.eps, m.momentum, affine=m.weight is not None)
    if isinstance(m, nn.LayerNorm):
        return make(m.normalized_shape, m.eps)
    if isinstance(m, nn.Embedding):
        return make(m.num_embeddings, m.embedding_dim)
    if isinstance(m, nn.Dropout):
        return make(m.p)
    if isinstance(m, nn.GELU):
        return make(m.approximate)
    if isinstance(m, nn.Flatten):
        return make(m.start_dim, m.end_dim)
    return make(m.dim) if isinstance(m, nn.LogSoftmax) else make()


def pair(torch: Any, make: Callable[[], nn.Module]) -> tuple[nn.Module, Any]:
    """Ours and theirs with the same weights in float64; nothing random is left in training."""
    ours = make().to(np.float64)
    for m in ours.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.0
    rng = np.random.default_rng(1)
    for name, p in ours.named_parameters():
        if "weight" not in name or p.ndim == 1:  # what starts as 0 or 1 hides mistakes
            p.data[...] = rng.standard_normal(p.shape)
    theirs = twin(torch.nn, ours).double()
    theirs.load_state_dict({k: torch.from_numpy(v) for k, v in ours.state_dict().items()})
    return ours, theirs


def close(a: Any, b: Any, what: str, scale: float | None = None) -> None:
    a, b = (v.numpy() if isinstance(v, nnmpi.Tensor) else np.asarray(v) for v in (a, b.detach()))
    assert a.shape == b.shape, what
    largest = scale or (np.abs(b).max() if b.size else 0.0)
    assert np.abs(a - b).max(initial=0.0) <= TOLERANCE * largest, what


def compare(torch: Any, ours: nn.Module, theirs: Any, x: np.ndarray, seed: int = 2) -> None:
    """Outputs, the gradient of the input and of all parameters, and the whole state after it."""
    follow = x.dtype.kind == "f"
    a, b = nnmpi.tensor(x, requires_grad=follow), torch.tensor(x, requires_grad=follow)
    ours.zero_grad()
    theirs.zero_grad()
    y, z = ours(a), theirs(b)
    close(y, z, "output")
    g = np.random.default_rng(seed).standard_normal(y.shape)
    if y.requires_grad:
        y.backward(g)
        z.backward(torch.from_numpy(g))
    grads = {name: (p.grad, q.grad) for (name, p), q in _both(ours, theirs)}
    largest = max((float(q.abs().max()) for _, q in grads.values()), default=None)
    for name, (p, q) in grads.items():
        close(p, q, f"gradient of {name}", largest)
    if follow:
        close(a.grad, b.grad, "gradient of the input")
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        close(ours.state_dict()[name], value, name)


def _both(ours: nn.Module, theirs: Any) -> Any:
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    return zip(ours.named_parameters(), theirs.parameters(), strict=True)


Case = tuple[Callable[[], nn.Module], tuple[int, ...]]
S = nn.Sequential
CASES: dict[str, Case] = {
    "Linear": (lambda: nn.Linear(5, 3), (4, 5)),
    "Linear, many axes": (lambda: nn.Linear(5, 3, bias=False), (2, 3, 4, 5)),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 6, 7)),
    "Conv2d, wide": (lambda: nn.Conv2d(6, 4, 2, 2, bias=False), (2, 6, 7, 6)),
    "Conv2d, padded": (lambda: nn.Conv2d(9, 4, 5, 3, 2), (2, 9, 8, 7)),
    "Conv2d, 1x1": (lambda: nn.Conv2d(9, 4, 1), (2, 9, 3, 3)),
    "Conv2d, Winograd 2": (lambda: nn.Conv2d(8, 4, 3, 1, 1, algorithm="winograd2"), (2, 8, 7, 6)),
    "Conv2d, Winograd 4": (lambda: nn.Conv2d(8, 4, 3, algorithm="winograd4"), (2, 8, 9, 7)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (2, 3, 7, 6)),
    "MaxPool2d, overlapping": (lambda: nn.MaxPool2d(3, 2, 1), (2, 3, 7, 6)),
    "MaxPool2d, with gaps": (lambda: nn.MaxPool2d(2, 3), (2, 3, 8, 7)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (2, 3, 7, 6)),
    "AvgPool2d, overlapping": (lambda: nn.AvgPool2d(3, 2, 1), (2, 3, 7, 6)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), (5, 3)),
    "BatchNorm1d, plain": (lambda: nn.BatchNorm1d(3, 1e-2, 0.3, affine=False), (5, 3)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3, momentum=0.7), (4, 3, 5, 2)),
    "LayerNorm": (lambda: nn.LayerNorm(5), (4, 5)),
    "LayerNorm, two axes": (lambda: nn.LayerNorm((4, 5), 1e-3), (2, 3, 4, 5)),
    "ReLU": (nn.ReLU, (4, 5)),
    "GELU": (nn.GELU, (40, 50)),
    "GELU, tanh": (lambda: nn.GELU("tanh"), (40, 50)),
    "Sigmoid": (nn.Sigmoid, (4, 5)),
    "Tanh": (nn.Tanh, (4, 5)),
    "LogSoftmax": (lambda: nn.LogSoftmax(1), (4, 5, 6)),
    "Flatten": (lambda: S(nn.Conv2d(3, 4, 3), nn.Flatten()), (2, 3, 5, 4)),
    "Flatten, from 2": (lambda: S(nn.Conv2d(3, 4, 3), nn.Flatten(2)), (2, 3, 5, 4)),
    "Flatten, 0 to -2": (lambda: S(nn.Conv2d(3, 4, 3), nn.Flatten(0, -2)), (2, 3, 5, 4)),
    "fused": (
        lambda: S(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 2, 2), nn.ReLU()),
        (2, 3, 9, 8),
    ),
    "pool first": (
        lambda: S(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)),
        (2, 3, 8, 8),
    ),
    "residue": (
        lambda: S(nn.Linear(5, 6), S(nn.GELU(), nn.LayerNorm(6)), nn.Linear(6, 6), nn.Tanh()),
        (3, 4, 5),
    ),
    "mlp": (lambda: mlp(12, 8, 7, 3), (4, 3, 2, 2)),
    "iris-mlp": (MODELS["iris-mlp"], (5, 4)),
    "digits-cnn": (MODELS["digits-cnn"], (4, 1, 8, 8)),
    "mnist-cnn": (MODELS["mnist-cnn"], (2, 1, 28, 28)),
    "cifar-cnn": (MODELS["cifar-cnn"], (1, 3, 32, 32)),
}


def test_every_model_is_among_the_cases() -> None:
    assert MODELS.keys() <= CASES.keys()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_outputs_and_gradients(case: Case, torch: Any) -> None:
    make, shape = case
    ours, theirs = pair(torch, make)
    compare(torch, ours, theirs, np.random.default_rng(0).standard_normal(shape))


@pytest.mark.parametrize("name", ["BatchNorm1d", "BatchNorm1d, plain", "BatchNorm2d", "digits-cnn"])
def test_running_statistics_over_several_steps(name: str, torch: Any) -> None:
    make, shape = CASES[name]
    ours, theirs = pair(torch, make)
    rng = np.random.default_rng(3)
    for step in range(5):
        compare(torch, ours, theirs, rng.standard_normal(shape) * (step + 1) + step)
    count = next(v for k, v in ours.state_dict().items() if k.endswith("num_batches_tracked"))
    assert count == 5
    ours.eval()
    theirs.eval()
    compare(torch, ours, theirs, rng.standard_normal(shape))


@pytest.mark.parametrize("index", [[2], [0, 2, 2, 5], [[1, 1], [0, 1]]], ids=str)
def test_embedding(index: list[Any], torch: Any) -> None:
    ours, theirs = pair(
        torch, lambda: S(nn.Embedding(6, 4), nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8))
    )
    compare(torch, ours, theirs, np.array(index))


def positional(make: Any) -> list[str]:
    """The arguments that may be given by position."""
    parameters = inspect.signature(make).parameters.values()
    return [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]


NAMES = [name for name in nn.__all__ if name not in ("Module", "ModuleList", "Parameter")]


@pytest.mark.parametrize("name", NAMES)
def test_arguments_by_position_are_in_the_order_of_pytorch(name: str, torch: Any) -> None:
    ours, theirs = (positional(getattr(library, name)) for library in (nn, torch.nn))
    assert ours == theirs[: len(ours)]


def test_an_argument_that_is_elsewhere_in_pytorch_is_refused_by_position() -> None:
    for call in (
        lambda: nn.Conv2d(8, 8, 3, 1, 1, 1, 8),  # a dilation, and 8 groups
        lambda: nn.MSELoss("sum"),
        lambda: nnmpi.tensor([1.0, 2.0]).var(0, False),  # PyTorch: without Bessel's correction
    ):
        with pytest.raises(TypeError, match="positional argument"):
            call()


LOSSES = {
    "CrossEntropyLoss": (nn.CrossEntropyLoss, lambda rng, n, c: rng.integers(0, c, n)),
    "NLLLoss": (nn.NLLLoss, lambda rng, n, c: rng.integers(0, c, n)),
    "MSELoss": (nn.MSELoss, lambda rng, n, c: rng.standard_normal((n, c))),
}


@pytest.mark.parametrize("scale", [1, 1000])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, reduction: str, scale: float, torch: Any) -> None:
    """With large numbers too: exp() must not overflow."""
    rng = np.random.default_rng(0)
    loss, target = LOSSES[name][0](reduction=reduction), LOSSES[name][1](rng, 6, 4)
    x = rng.standard_normal((6, 4)) * scale
    a, b = nnmpi.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, z = loss(a, target), getattr(torch.nn, name)(reduction=reduction)(b, torch.tensor(target))
    close(y, z, "loss")
    assert loss(a, nnmpi.tensor(target)).numpy().tolist() == y.numpy().tolist()
    g = rng.standard_normal(y.shape)
    y.backward(g)
    z.backward(torch.tensor(g))
    close(a.grad, b.grad, "gradient")


def test_the_target_of_a_squared_error_has_a_gradient_too(torch: Any) -> None:
    x, t = np.random.default_rng(0).standard_normal((2, 3, 4))
    ours = [nnmpi.tensor(v, requires_grad=True) for v in (x, t)]
    theirs = [torch.tensor(v, requires_grad=True) for v in (x, t)]
    nn.MSELoss()(*ours).backward()
    torch.nn.MSELoss()(*theirs).backward()
    for a, b in zip(ours, theirs, strict=True):
        close(a.grad, b.grad, "gradient")
