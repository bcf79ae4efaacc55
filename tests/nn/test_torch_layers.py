"""Models, and layers that run as one op, against those of PyTorch in float64.

Layers by themselves are in PyTorch's database of modules: tests/outside.
"""

import inspect
from collections.abc import Callable
from typing import Any, get_overloads

import numpy as np
import pytest
from helpers.ops.oracle import same_as_pytorch

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
    """The module of PyTorch (`t` is torch.nn) that is built as m is, which keeps what it was made
    with under the names of its arguments."""
    make = getattr(t, type(m).__name__)
    if isinstance(m, nn.Sequential):
        return make(*(twin(t, layer) for layer in m))
    names = {*inspect.signature(make).parameters} - {"inplace"}  # which PyTorch refuses of leaves
    options = {name: getattr(m, name) for name in names if hasattr(m, name)}
    for flag, values in (("bias", "bias"), ("affine", "weight"), ("elementwise_affine", "weight")):
        if flag in names:
            options[flag] = getattr(m, values) is not None
    return make(**options)


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
    theirs.load_state_dict({k: torch.from_numpy(v.numpy()) for k, v in ours.state_dict().items()})
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
    "Conv2d, wide": (lambda: nn.Conv2d(6, 4, 2, 2, bias=False), (2, 6, 7, 6)),
    "Conv2d, padded": (lambda: nn.Conv2d(9, 4, 5, 3, 2), (2, 9, 8, 7)),
    "Conv2d, 1x1": (lambda: nn.Conv2d(9, 4, 1), (2, 9, 3, 3)),
    "Conv2d, Winograd 2": (lambda: nn.Conv2d(8, 4, 3, 1, 1, algorithm="winograd2"), (2, 8, 7, 6)),
    "Conv2d, Winograd 4": (lambda: nn.Conv2d(8, 4, 3, algorithm="winograd4"), (2, 8, 9, 7)),
    "Conv2d, tuples": (lambda: nn.Conv2d(6, 4, (3, 2), (2, 1), (0, 1), (1, 2)), (2, 6, 8, 7)),
    "Conv2d, same": (lambda: nn.Conv2d(4, 8, (4, 3), padding="same", dilation=2), (2, 4, 6, 5)),
    "Conv2d, groups": (lambda: nn.Conv2d(6, 4, 3, groups=2, bias=False), (2, 6, 5, 5)),
    "Conv2d, depthwise": (lambda: nn.Conv2d(4, 8, 3, 2, 1, groups=4), (3, 4, 7, 6)),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, 2, 1, groups=2), (3, 4, 9)),
    "Conv1d, valid": (lambda: nn.Conv1d(4, 6, 2, padding="valid", dilation=3), (3, 4, 9)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (2, 4, 5, 4)),
    "ConvTranspose2d, 1x1": (
        lambda: nn.ConvTranspose2d(5, 8, 1, dilation=2, output_padding=1),
        (2, 5, 6, 6),
    ),
    "ConvTranspose2d, dilation": (
        lambda: nn.ConvTranspose2d(2, 3, (2, 3), bias=False, dilation=(3, 1)),
        (2, 2, 4, 5),
    ),
    "decoder": (
        lambda: S(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 1, 4, 2, 1)),
        (2, 1, 8, 8),
    ),
    "separable": (
        lambda: S(
            *(nn.Conv2d(3, 6, 3, 1, 1, groups=3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 1)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)),
        ),
        (2, 3, 8, 9),
    ),
    "MaxPool2d, tuples": (
        lambda: nn.MaxPool2d((3, 2), (2, 1), (1, 0), (1, 2), ceil_mode=True),
        (2, 3, 8, 6),
    ),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (2, 3, 7, 6)),
    "MaxPool2d, overlapping": (lambda: nn.MaxPool2d(3, 2, 1), (2, 3, 7, 6)),
    "MaxPool2d, with gaps": (lambda: nn.MaxPool2d(2, 3), (2, 3, 8, 7)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), (5, 3)),
    "BatchNorm1d, plain": (lambda: nn.BatchNorm1d(3, 1e-2, 0.3, affine=False), (5, 3)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3, momentum=0.7), (4, 3, 5, 2)),
    "BatchNorm1d, sequences": (lambda: nn.BatchNorm1d(3), (5, 3, 4)),
    "BatchNorm1d, cumulative": (lambda: nn.BatchNorm1d(3, momentum=None), (2, 3, 4)),
    "BatchNorm1d, untracked": (
        lambda: nn.BatchNorm1d(3, affine=False, track_running_stats=False),
        (5, 3),
    ),
    "BatchNorm2d, untracked": (lambda: nn.BatchNorm2d(3, track_running_stats=False), (4, 3, 5, 2)),
    "GroupNorm, channels last": (lambda: S(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)), (3, 2, 6, 5)),
    "Identity": (lambda: S(nn.Identity(), nn.Linear(5, 3), nn.Identity()), (4, 5)),
    "ReLU, in place": (lambda: S(nn.Linear(5, 4), nn.ReLU(inplace=True)), (4, 5)),
    "activations, in place": (
        lambda: S(nn.LeakyReLU(0.1, True), nn.SiLU(True), nn.ELU(0.5, True), nn.Dropout(0.5, True)),
        (4, 5),
    ),
    "PReLU, each channel": (lambda: S(nn.Conv2d(2, 4, 3), nn.PReLU(4)), (3, 2, 6, 5)),
    "Upsample, bilinear": (lambda: nn.Upsample(scale_factor=1.5, mode="bilinear"), (2, 3, 4, 5)),
    "Upsample, corners": (
        lambda: S(nn.Conv2d(3, 4, 3), nn.Upsample(9, mode="bilinear", align_corners=True)),
        (2, 3, 6, 5),
    ),
    "Conv2d, reflect": (
        lambda: S(nn.Conv2d(3, 4, 3, 2, 1, padding_mode="reflect"), nn.ReLU(), nn.MaxPool2d(2)),
        (2, 3, 9, 8),
    ),
    "Conv2d, circular": (
        lambda: nn.Conv2d(4, 6, (3, 4), padding="same", groups=2, padding_mode="circular"),
        (2, 4, 6, 5),
    ),
    "Conv1d, replicate": (
        lambda: nn.Conv1d(4, 6, 3, padding=4, dilation=2, padding_mode="replicate"),
        (3, 4, 9),
    ),
    "Dropout2d": (lambda: S(nn.Dropout2d(0.3), nn.Conv2d(3, 2, 2)), (2, 3, 4, 5)),
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


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_outputs_and_gradients(case: Case, torch: Any) -> None:
    make, shape = case
    ours, theirs = pair(torch, make)
    compare(torch, ours, theirs, np.random.default_rng(0).standard_normal(shape))


TRACKED = [name for name in CASES if name.startswith("BatchNorm")] + ["digits-cnn"]


@pytest.mark.parametrize("name", TRACKED)
def test_running_statistics_over_several_steps(name: str, torch: Any) -> None:
    make, shape = CASES[name]
    ours, theirs = pair(torch, make)
    rng = np.random.default_rng(3)
    for step in range(5):
        compare(torch, ours, theirs, rng.standard_normal(shape) * (step + 1) + step)
    counts = [v for k, v in ours.state_dict().items() if k.endswith("num_batches_tracked")]
    assert set(map(int, counts)) == (set() if "untracked" in name else {5})
    ours.eval()
    theirs.eval()
    compare(torch, ours, theirs, rng.standard_normal(shape))


@pytest.mark.parametrize("index", [[2], [0, 2, 2, 5], [[1, 1], [0, 1]]], ids=str)
def test_embedding(index: list[Any], torch: Any) -> None:
    ours, theirs = pair(
        torch, lambda: S(nn.Embedding(6, 4), nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8))
    )
    compare(torch, ours, theirs, np.array(index))


@pytest.mark.parametrize("padding", [1, -5])
def test_the_padding_row_of_an_embedding_is_zero_and_stays_so(padding: int, torch: Any) -> None:
    layer = nn.Embedding(6, 4, padding_idx=padding)
    assert layer.padding_idx == 1
    drawn = layer.weight.data.any(axis=1).tolist()
    assert drawn == torch.nn.Embedding(6, 4, padding).weight.bool().any(1).tolist()
    np.testing.assert_array_equal(nn.init.normal_(nn.Embedding(6, 4, padding).weight)[1] != 0, True)
    ours, theirs = pair(torch, lambda: S(nn.Embedding(6, 4, padding), nn.Linear(4, 2)))
    compare(torch, ours, theirs, np.array([[1, 0, 1], [5, 1, 0]]))
    assert not ours[0].weight.grad[1].any()


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    """Those of a function, of which PyTorch's recurrent layers declare overloads."""
    declared = get_overloads(function)
    return {**inspect.signature(declared[0] if declared else function).parameters}


CLASSES = {name for name in nn.__all__ if isinstance(getattr(nn, name), type)}
OWN = {"Branches", "ChannelsFirst", "GPT", "MixtureOfExperts", "PositionalEmbedding"}
OWN |= {"Llama", "RotaryPositionalEmbeddings", "SelfAttention", "SwiGLU"}
NAMES = sorted(CLASSES - OWN - {"Module", "ModuleList", "Parameter"})


OTHER_DEFAULTS = {"activation", "dim", "modules", "values"}
"""Arguments that PyTorch has without a default, or with a function or None."""


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_in_the_order_of_pytorch_with_its_defaults(name: str, torch: Any) -> None:
    for method in ("__init__", "forward"):
        kinds = getattr(nn, name), getattr(torch.nn, name)
        ours, theirs = (parameters(getattr(kind, method)) for kind in kinds)
        by_position = [k for k, p in ours.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        if method == "__init__":
            assert by_position == [*theirs][: len(by_position)]
        for argument in ours.keys() & theirs.keys() - OTHER_DEFAULTS:
            assert ours[argument].default == theirs[argument].default, (method, argument)


def test_an_argument_that_is_elsewhere_in_pytorch_is_refused_by_position() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        nn.MSELoss("sum")


def test_the_target_of_a_squared_error_has_a_gradient_too(torch: Any) -> None:
    x, t = np.random.default_rng(0).standard_normal((2, 3, 4))
    same_as_pytorch(lambda n, x, t: n.nn.MSELoss()(x, t), x, t)


@pytest.mark.parametrize("fused", [True, False])
def test_pools_return_where_the_maxima_are(fused: bool, torch: Any) -> None:
    """Also behind a convolution, with which a 2x2 window would run as one op."""
    before = (nn.Conv2d(2, 3, 3), nn.ReLU()) if fused else (nn.Identity(),)
    ours, theirs = pair(torch, lambda: S(*before))
    x = np.random.default_rng(0).standard_normal((2, 2, 9, 8))
    y, places = S(*ours, nn.MaxPool2d(2, return_indices=True))(nnmpi.tensor(x))
    z, expected = torch.nn.MaxPool2d(2, return_indices=True)(theirs(torch.tensor(x)))
    close(y, z, "maxima")
    np.testing.assert_array_equal(places.numpy(), expected.numpy())
    assert places.dtype == "int64"
    assert y.requires_grad == fused
    assert not places.requires_grad
