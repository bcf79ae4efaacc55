"""Convolutions by cuDNN against im2col: by a fake of its front end, or by cuDNN on a GPU."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device
from helpers.kernels import fakecudnn

import nnmpi
from nnmpi import nn, optim
from nnmpi.addons.cuda import cudnn
from nnmpi.addons.cuda.conv import Cudnn
from nnmpi.arrays import backend
from nnmpi.arrays.kernels import conv
from nnmpi.arrays.kernels.window import Window
from nnmpi.autograd.ops.conv import conv2d

pytestmark = needs_device
CASES: dict[str, dict[str, Any]] = {
    "3x3": {"shape": (2, 8, 6, 7), "w": (4, 8, 3, 3), "padding": 1},
    "relu": {"shape": (3, 4, 5, 5), "w": (6, 4, 3, 3), "relu": True},
    "pool": {"shape": (2, 3, 8, 8), "w": (5, 3, 3, 3), "padding": 1, "relu": True, "pool": True},
    "pool of odd sizes": {"shape": (2, 3, 7, 9), "w": (5, 3, 3, 3), "padding": 1, "pool": True},
    "stride": {"shape": (2, 4, 9, 8), "w": (3, 4, 3, 2), "stride": (2, 3), "padding": (1, 0)},
    "1x1": {"shape": (2, 6, 4, 4), "w": (3, 6, 1, 1)},
    "dilation": {"shape": (2, 4, 9, 9), "w": (3, 4, 3, 3), "dilation": 2, "padding": 2},
    "same": {"shape": (2, 4, 5, 6), "w": (3, 4, 4, 2), "padding": "same"},
    "groups": {"shape": (2, 6, 5, 5), "w": (4, 3, 3, 3), "groups": 2, "padding": 1},
    "depthwise": {"shape": (2, 6, 5, 5), "w": (6, 1, 3, 3), "groups": 6, "padding": 1},
    "grey": {"shape": (2, 1, 6, 6), "w": (4, 1, 3, 3), "padding": 1},
    "one sample": {"shape": (1, 2, 3, 3), "w": (1, 2, 3, 3)},
}


def computed(case: dict[str, Any], algorithm: str, bias: bool = True) -> list[np.ndarray]:
    """The value and the gradients of x, w and b."""
    options = {k: v for k, v in case.items() if k not in ("shape", "w")}
    rng = np.random.default_rng(0)
    shapes = case["shape"], case["w"], (case["w"][0],)
    x, w, b = (DEVICE.asarray(rng.standard_normal(s).astype("float32")) for s in shapes)
    result = conv2d(x, w, b if bias else None, algorithm=algorithm, **options)
    assert result.prepare is not None
    g = DEVICE.asarray(rng.standard_normal(result.value.shape).astype("float32"))
    shared = result.prepare(g, (True, True, bias))
    gradients = [vjp(shared, None) for vjp in result.vjps[: 2 + bias]]
    return [backend.to_host(a) for a in (result.value, *gradients)]


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_im2col_does(
    fake: fakecudnn.Fake | None, monkeypatch: pytest.MonkeyPatch, name: str, bias: bool
) -> None:
    asked, run = list[str](), cudnn.run

    def counted(convolution: cudnn.Convolution, arrays: Sequence[backend.Array]) -> None:
        asked.append(convolution.op.operation)
        run(convolution, arrays)

    monkeypatch.setattr(cudnn, "run", counted)
    found = computed(CASES[name], "auto", bias)
    assert asked == ["conv_fprop", "conv_dgrad", "conv_wgrad"], "im2col was taken"
    for a, b in zip(found, computed(CASES[name], "im2col", bias), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * abs(b).max())
    if fake is not None:
        assert len(fake.executed) == 3, "im2col was asked for"


def test_a_gradient_of_weights_goes_where_it_is_wanted(fake: fakecudnn.Fake | None) -> None:
    x, w = DEVICE.xp.ones((2, 4, 5, 5), "float32"), DEVICE.xp.ones((3, 4, 3, 3), "float32")
    result = conv2d(x, w, None)
    assert result.prepare is not None
    shared = result.prepare(DEVICE.xp.ones(result.value.shape, "float32"), (False, True, False))
    assert shared.dx is None
    out = DEVICE.xp.zeros((3, 3, 4, 3), "float32").transpose(3, 2, 0, 1)
    assert result.vjps[1](shared, out) is out
    assert backend.to_host(out).tolist() == np.full((3, 4, 3, 3), 18.0).tolist()


def trained(on: backend.Backend) -> dict[str, np.ndarray]:
    """The state of a model after some steps."""
    model = nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(4)),
        *(nn.Conv2d(4, 5, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3)),
    ).to("float32", on)
    opt, rng = optim.SGD(model.parameters(), 0.1, 0.9), np.random.default_rng(0)
    x, y = rng.standard_normal((6, 2, 10, 10)).astype("float32"), rng.integers(0, 3, 6)
    for _ in range(4):
        loss = nn.CrossEntropyLoss()(model(nnmpi.tensor(x, on=on)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {name: t.numpy() for name, t in model.state_dict().items()}


def test_training_steps_are_those_of_the_cpu(fake: fakecudnn.Fake | None) -> None:
    found, wanted = trained(DEVICE), trained(backend.CPU)
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-3, atol=1e-5)
    if fake is not None:
        first = ["wgrad"]  # nothing wants the gradient of the samples
        step = ["fprop", "fprop", "dgrad", "wgrad", *first]
        assert fake.executed == step * 4


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("name", ["3x3", "pool of odd sizes", "groups"])
def test_without_an_engine_im2col_computes(
    fake: fakecudnn.Fake | None, name: str, kind: str
) -> None:
    if fake is None:
        pytest.skip("only the fake lacks engines")
    fake.unsupported.add(kind)
    found = computed(CASES[name], "auto")
    assert fake.executed == (["fprop", "wgrad"] if kind == "dgrad" else [])
    for a, b in zip(found, computed(CASES[name], "im2col"), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("where", "dtype"), [("host", "float32"), ("device", "float64"), ("device", "empty")]
)
def test_other_arrays_are_left_to_other_methods(
    fake: fakecudnn.Fake | None, where: str, dtype: str
) -> None:
    on = backend.CPU if where == "host" else DEVICE
    n, dtype = (0, "float32") if dtype == "empty" else (2, dtype)
    x, w = on.xp.ones((n, 5, 5, 4), dtype), on.xp.ones((3, 3, 4, 8), dtype)
    method, _ = conv.method_of(x, w, conv.ConvShape(conv_windows()))
    assert not isinstance(method, Cudnn)


def conv_windows() -> Any:
    return (Window(3, 1, 1, 1),) * 2
