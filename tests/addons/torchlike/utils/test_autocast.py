"""autocast: products in 16 bits from float32 parameters, whose gradients are float32."""

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device
from helpers.ops import autocast_cases as cases

import nnmpi
from nnmpi import nn, optim
from nnmpi.addons import loaded
from nnmpi.addons.torchlike.autocasting import MORE_RULES, RULES, Casts
from nnmpi.autograd.recording import op_types
from nnmpi.utils.checkpoint import checkpoint


def numbers(*shape: int) -> np.ndarray:
    """Numbers that depend on the shape only."""
    return np.random.default_rng(shape).standard_normal(shape).astype("float32")


def rounded(a: np.ndarray) -> np.ndarray:
    """The numbers rounded to bfloat16, in float64."""
    return a.astype(nnmpi.bfloat16).astype("float64")


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", cases.NARROW | cases.FLOAT32)
def test_types_of_results(name: str, half: str) -> None:
    with nnmpi.autocast("cpu", dtype=half):
        result = (cases.NARROW | cases.FLOAT32)[name](
            nnmpi,
            lambda *shape: nnmpi.tensor(numbers(*shape)),
            lambda *shape: nnmpi.tensor(numbers(*shape)).to(half),
        )
    assert cases.first(result).dtype == ("float32" if name in cases.FLOAT32 else half)


def test_ops_with_rules_are_there() -> None:
    for module, ops in RULES.items():
        assert all(callable(getattr(import_module(module), op)) for op in ops)
    for op in MORE_RULES.where:
        assert callable(loaded(op))


OF_ADD_ONS = {
    "nnmpi.addons.transformer.ops.attention:attention": "bfloat16",
    "nnmpi.addons.transformer.ops.attention:self_attention": "bfloat16",
    "nnmpi.addons.transformer.context.ring:ring_attention": "bfloat16",
    "nnmpi.addons.layer_ways.expert_ops:experts": "bfloat16",
    "nnmpi.addons.layer_ways.expert_ops:route": "float32",
    "nnmpi.addons.layer_ways.experts_on_ranks:experts_by_exchange": "bfloat16",
    "nnmpi.addons.layer_ways.experts_on_ranks:experts_on_ranks": "bfloat16",
    "nnmpi.addons.layer_ways.image_rows.layers:conv2d": "bfloat16",
}


@pytest.mark.parametrize("op", OF_ADD_ONS)
def test_types_of_ops_of_add_ons(op: str) -> None:
    given = numbers(3), numbers(3).astype(nnmpi.bfloat16)
    taken = Casts({"cpu": nnmpi.bfloat16}, None).arguments(loaded(op), given, {})
    assert [a.dtype for a in taken] == [OF_ADD_ONS[op]] * 2


def test_values_and_gradients_of_a_product() -> None:
    x, w, g = numbers(5, 7), numbers(4, 7), rounded(numbers(5, 4))
    layer = nn.Linear(7, 4, bias=False)
    layer.weight.data = nnmpi.tensor(w)
    given = nnmpi.tensor(x, requires_grad=True)
    with nnmpi.autocast("cpu"):
        y = layer(given)
    y.backward(g.astype(nnmpi.bfloat16))
    assert (y.dtype, given.grad.dtype, layer.weight.grad.dtype) == ("bfloat16", "f4", "f4")
    wanted = {
        "y": (y, rounded(x) @ rounded(w).T),
        "x": (given.grad, g @ rounded(w)),
        "w": (layer.weight.grad, g.T @ rounded(x)),
    }
    for name, (found, exact) in wanted.items():
        found = found.numpy().astype("float64")
        np.testing.assert_allclose(found, exact, rtol=2.0**-8, atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(found, rounded(found), err_msg=name)


def test_float64_and_integers_stay() -> None:
    a, b = nnmpi.tensor(numbers(3, 3).astype("float64")), nnmpi.tensor(np.eye(3, dtype="int64"))
    with nnmpi.autocast("cpu"):
        assert (a @ a).dtype == "float64"
        assert (b @ b).dtype == "int64"
        assert (a[0] @ numbers(3, 2).astype("float64")).dtype == "float64"
        assert (nnmpi.tensor(numbers(2, 3)) @ numbers(3, 2)).dtype == "bfloat16"
        y = nnmpi.tensor(numbers(2, 3)) @ a  # float32 and float64
    assert y.dtype == "float64"
    np.testing.assert_array_equal(y, numbers(2, 3) @ numbers(3, 3).astype("float64"))


def test_layers_that_only_nnmpi_has() -> None:
    with nnmpi.seeded(0):
        layers = nn.Linear(8, 24), nn.SelfAttention(2, rotary=100.0), nn.MixtureOfExperts(8, 12, 3)
        model = nn.Sequential(*layers)
    with nnmpi.autocast("cpu"):
        y = model(nnmpi.tensor(numbers(2, 5, 8)))
    assert y.dtype == "bfloat16"
    y.backward(np.ones(y.shape, y.dtype))
    assert {p.grad.dtype for p in model.parameters()} == {nnmpi.float32}
    np.testing.assert_allclose(
        y.detach().float(), model(nnmpi.tensor(numbers(2, 5, 8))).detach(), 0.1, 0.02
    )


def test_weights_of_classes_are_not_rounded() -> None:
    scores, labels, weight = numbers(6, 3), np.arange(6) % 3, np.array([0.1, 1.003, 2.7])
    with nnmpi.autocast("cpu"):
        loss = nn.CrossEntropyLoss(weight)(nnmpi.tensor(scores).bfloat16(), labels)
    z = rounded(scores)
    logp = z - np.log(np.exp(z).sum(1, keepdims=True))
    share = weight[labels]
    exact = -(share * logp[np.arange(6), labels]).sum() / share.sum()
    np.testing.assert_allclose(loss.item(), exact, rtol=1e-6)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_gradients_of_recurrent_layers(layer: Any) -> None:
    """Those of an embedding arrive summed over equal integers."""

    def gradients(enabled: bool) -> list[np.ndarray]:
        with nnmpi.seeded(0):
            model = nn.ModuleList([nn.Embedding(5, 8), layer(8, 6)])
        index = np.arange(40).reshape(10, 4) % 5
        with nnmpi.autocast("cpu", enabled=enabled):
            loss = (model[1](model[0](index))[0].float() ** 2).sum()
        loss.backward()
        return [p.grad.numpy().copy() for p in model.parameters()]

    for g, exact in zip(gradients(True), gradients(False), strict=True):
        assert g.dtype == "float32"
        np.testing.assert_allclose(g, exact, rtol=0.1, atol=0.03 * abs(exact).max())


# ---- contexts


def dtype_of_product() -> np.dtype[Any]:
    return (nnmpi.ones(2, 2) @ nnmpi.ones(2, 2)).dtype


def test_contexts_within_contexts() -> None:
    assert nnmpi.get_autocast_dtype("cpu") == "bfloat16"
    with nnmpi.autocast("cpu", dtype=np.float16):
        assert nnmpi.is_autocast_enabled("cpu")
        assert not nnmpi.is_autocast_enabled()
        assert nnmpi.get_autocast_dtype("cpu") == dtype_of_product() == "float16"
        with nnmpi.autocast("cpu", enabled=False):
            assert not nnmpi.is_autocast_enabled("cpu")
            assert dtype_of_product() == "float32"
            with nnmpi.autocast("cpu", "bfloat16"):
                assert dtype_of_product() == "bfloat16"
        with nnmpi.autocast("cpu"):  # the type of the outer one
            assert dtype_of_product() == "float16"
        with pytest.raises(ZeroDivisionError), nnmpi.autocast("cpu", enabled=False):
            1 / 0  # noqa: B018
        assert dtype_of_product() == "float16"
    assert dtype_of_product() == "float32"


def test_decorated_functions_run_on_several_threads() -> None:
    met = threading.Barrier(3, timeout=60)

    @nnmpi.autocast("cpu")
    def function(again: bool = True) -> list[Any]:
        met.wait()
        return [dtype_of_product(), *(function(False) if again else [])]

    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(lambda _: function(), range(3))]
    assert found == [["bfloat16", "bfloat16"]] * 3
    assert dtype_of_product() == "float32"


def test_what_cannot_be_or_changes_nothing() -> None:
    with pytest.raises(ValueError, match="'tpu' must be 'cpu' or 'cuda'"):
        nnmpi.autocast("tpu")
    with pytest.warns(UserWarning, match="autocast in float32 changes nothing"):
        context = nnmpi.autocast("cpu", dtype="float32")
    for off in (context, *(nnmpi.amp.autocast(on, enabled=False) for on in ("cpu", "cuda"))):
        with off:  # which says nothing: warnings are errors
            assert dtype_of_product() == "float32"


# ---- copies of parameters


def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list to which the shape of each array is added that is converted from now on."""
    from nnmpi.addons.torchlike import autocasting

    shapes: list[Any] = []

    def noted(a: Any, dtype: Any) -> Any:
        shapes.append(a.shape)
        return plain(a, dtype)

    plain = autocasting.cast
    monkeypatch.setattr(autocasting, "cast", noted)
    return shapes


@pytest.mark.parametrize(("keeps", "times"), [(None, 1), (True, 1), (False, 3)])
def test_a_weight_is_converted_once(
    keeps: bool | None, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = nn.Linear(3, 3), nnmpi.tensor(numbers(2, 3))
    shapes = conversions(monkeypatch)
    with nnmpi.autocast("cpu", cache_enabled=keeps):
        for _ in range(2):
            x = layer(x)
        with nnmpi.no_grad(), nnmpi.autocast("cpu", cache_enabled=keeps):
            layer(x)
    assert shapes.count((3, 3)) == times
    shapes.clear()
    with nnmpi.autocast("cpu"):
        layer(x)
    assert shapes.count((3, 3)) == 1  # a context of its own


def test_copies_follow_their_weights() -> None:
    layer, x = nn.Linear(2, 2, bias=False), nnmpi.tensor(np.eye(2, dtype="float32"))
    opt = optim.SGD(layer.parameters(), lr=1.0)
    with nnmpi.autocast("cpu"):
        for _ in range(2):  # a loop within the context, as some programs have it
            y = layer(x)
            np.testing.assert_array_equal(y.detach().float(), rounded(layer.weight.numpy()).T)
            y.sum().backward()
            opt.step()
    layer.weight.data = nnmpi.ones(2, 2)
    with nnmpi.autocast("cpu"):
        np.testing.assert_array_equal(layer(x).detach().float(), np.ones((2, 2)))
    assert op_types.get() is None


def test_several_backward_passes_through_one_copy() -> None:
    def gradient(keeps: bool) -> np.ndarray:
        with nnmpi.seeded(0):
            layer = nn.Linear(3, 3)
        with nnmpi.autocast("cpu", cache_enabled=keeps):
            with nnmpi.no_grad():
                x = layer(nnmpi.tensor(numbers(4, 3)))
            losses = [layer(x).sum(), (layer(layer(x)) ** 2).sum()]
        for loss in losses:
            loss.backward()
        return layer.weight.grad.numpy().copy()

    np.testing.assert_array_equal(gradient(True), gradient(False))


# ---- with other parts of nnmpi


class Block(nn.Module):
    """Two layers, one of which is used twice; they may run again in the backward pass."""

    def __init__(self, again: bool) -> None:
        self.a, self.b, self.again = nn.Linear(4, 4), nn.Linear(4, 4), again

    def inner(self, x: Any) -> Any:
        return self.b(nnmpi.relu(self.a(nnmpi.relu(self.a(x)))))

    def forward(self, x: Any) -> Any:
        y = self.a(x)
        return self.a(checkpoint(self.inner, y) if self.again else self.inner(y))


@pytest.mark.parametrize("inside", [True, False])
def test_a_function_that_runs_again_has_the_same_types(inside: bool) -> None:
    def gradients(again: bool) -> list[np.ndarray]:
        with nnmpi.seeded(0):
            block = Block(again)
        with nnmpi.autocast("cpu"):
            y = block(nnmpi.tensor(numbers(3, 4)))
        with nnmpi.autocast("cpu", "float16", enabled=inside):
            y.backward(np.ones(y.shape, y.dtype))
        return [p.grad.numpy().copy() for p in block.parameters()]

    for a, b in zip(gradients(False), gradients(True), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_compiled_step() -> None:
    def run(wrap: Callable[[Any], Any], outside: bool) -> tuple[list[float], Any]:
        with nnmpi.seeded(0):
            model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
        opt, x = optim.Adam(model.parameters(), lr=0.01), numbers(8, 1, 6, 6)

        def step(x: Any, y: Any) -> Any:
            opt.zero_grad()
            with nnmpi.enable_grad() if outside else nnmpi.autocast("cpu", dtype=nnmpi.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            return loss

        called, losses = wrap(step), []
        for i in range(8):
            with nnmpi.autocast("cpu", enabled=outside and i % 2 == 0):
                losses.append(called(nnmpi.tensor(x), np.arange(8) % 3).item())
        return losses, called

    for outside in (False, True):
        losses, compiled = run(nnmpi.compile, outside)
        assert losses == run(lambda f: f, outside)[0]
        assert compiled.replays == (5 if outside else 6)  # the first calls are recorded


def test_a_compiled_step_keeps_no_copies() -> None:
    layer = nn.Linear(4, 4)
    step = nnmpi.compile(lambda x: layer(x).sum())
    x = nnmpi.tensor(numbers(2, 4))
    with nnmpi.autocast("cpu"):
        for _ in range(3):
            layer(x)
            step(x)
        (copy, *_) = op_types.get().kept.values()
        values = weakref.ref(copy.values)
    del copy
    gc.collect()
    assert values() is None


def test_custom_functions() -> None:
    def function(**casts: Any) -> Any:
        class Product(nnmpi.autograd.Function):
            @staticmethod
            @nnmpi.amp.custom_fwd(device_type="cpu", **casts)
            def forward(ctx: Any, a: Any, b: Any) -> Any:
                ctx.save_for_backward(a, b)
                return a @ b

            @staticmethod
            @nnmpi.amp.custom_bwd(device_type="cpu")
            def backward(ctx: Any, g: Any) -> Any:
                a, b = ctx.saved_tensors
                types.append((g @ b.T).dtype)
                return (g @ b.T).float(), (a.T @ g).float()

        return Product

    types: list[Any] = []
    a = nnmpi.tensor(numbers(2, 3), requires_grad=True)
    for casts, wanted in (({}, "bfloat16"), ({"cast_inputs": "float32"}, "float32")):
        with nnmpi.autocast("cpu"):
            y = function(**casts).apply(a.bfloat16() if casts else a, nnmpi.tensor(numbers(3, 3)))
        assert y.dtype == wanted
        y.sum().backward()
        assert types.pop() == wanted


def test_threads_share_one_context() -> None:
    context, inside = nnmpi.autocast("cpu"), threading.Barrier(2, timeout=30)
    x = nnmpi.tensor(numbers(3, 3))

    def run(_: int) -> tuple[Any, Any]:
        with context:
            inside.wait()
            first = (x @ x).dtype
            inside.wait()
        return first, (x @ x).dtype

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(run, range(2))] == [("bfloat16", "float32")] * 2


def test_inputs_of_custom_functions() -> None:
    found: list[Any] = []

    class Kept(nnmpi.autograd.Function):
        @staticmethod
        @nnmpi.amp.custom_fwd(device_type="cpu", cast_inputs="float32")
        def forward(ctx: Any, a: Any, *others: Any) -> Any:
            found.extend([a.dtype, others[0].dtype, others[1].dtype, others[2][0].dtype])
            found.append(others[3]["b"].dtype)
            return a * 2

        @staticmethod
        @nnmpi.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2, None, None, None, None

    half = nnmpi.tensor(numbers(3)).bfloat16()
    with nnmpi.autocast("cpu"):
        Kept.apply(half, half.double(), nnmpi.arange(3), [half], {"b": half})
    assert found == ["float32", "float64", "int64", "float32", "float32"]


# ---- on a device

ON_GPU: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: nn.functional.linear(x.float(), x.float()),
    "bmm": lambda x: x.float()[None] @ x.float().T[None],
    "relu": nnmpi.relu,
    "mean": lambda x: x.mean(),
}
WIDE_ON_GPU: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "sum": lambda x: x.sum(),
    "cumsum": lambda x: x.cumsum(0),
    "layer_norm": lambda x: nn.functional.layer_norm(x, (4,)),
    "exp": lambda x: x.exp(),
    "power": lambda x: x**2,
    "mse_loss": lambda x: nn.functional.mse_loss(x, x),
}


@needs_device
@pytest.mark.parametrize("name", ON_GPU | WIDE_ON_GPU)
def test_types_on_a_device(name: str) -> None:
    x = nnmpi.tensor(numbers(3, 4).astype("float16"))
    with nnmpi.autocast("cuda"):
        on_device = (ON_GPU | WIDE_ON_GPU)[name](nnmpi.tensor(x.numpy(), on=DEVICE))
        on_host = (ON_GPU | WIDE_ON_GPU)[name](x)
        assert nnmpi.get_autocast_dtype("cuda") == "float16"
    assert on_device.dtype == ("float32" if name in WIDE_ON_GPU else "float16")
    assert on_host.dtype == ("float32" if name in ("linear", "bmm") else "float16")


@needs_device
def test_gradients_on_a_device() -> None:
    with nnmpi.seeded(0):
        layer = nn.Linear(4, 3)
    layer.to(DEVICE)
    scaler = nnmpi.amp.GradScaler("cuda", init_scale=1024.0)
    opt = optim.SGD(layer.parameters(), lr=0.5)
    for factor in (1.0, np.inf):
        before = layer.weight.numpy().copy()
        opt.zero_grad()
        with nnmpi.autocast("cuda"):
            y = layer(nnmpi.tensor(numbers(2, 4), on=DEVICE))
            assert y.dtype == "float16"
            loss = y.sum() * factor
        scaler.scale(loss).backward()
        assert layer.weight.grad.dtype == "float32"
        scaler.step(opt)
        scaler.update()
        moved = before - 0.5 * numbers(2, 4).astype("float16").astype("float32").sum(0)
        wanted = before if factor == np.inf else moved
        np.testing.assert_allclose(layer.weight.numpy(), wanted, rtol=2e-3, atol=2e-3)
    assert scaler.get_scale() == 512.0
