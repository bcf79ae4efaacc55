"""autocast and GradScaler beside PyTorch's on a CPU: types, values, scales."""

from typing import Any

import numpy as np
import pytest
from helpers.ops import autocast_cases as cases
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn

pytestmark = [needs_torch, pytest.mark.all_add_ons]


def numbers(*shape: int) -> np.ndarray:
    """Numbers that depend on the shape only."""
    return np.random.default_rng(shape).standard_normal(shape).astype("float32")


def skip_lstm(name: str) -> None:
    """Skips a test of an LSTM where PyTorch runs none in bfloat16."""
    mkldnn = pytorch().ops.mkldnn
    if name.startswith("LSTM") and "Cell" not in name and not mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("PyTorch has no LSTM in bfloat16 on this processor")


def results(case: cases.Call, half: str) -> tuple[Any, Any]:
    """The results of nnmpi and of PyTorch within autocast."""
    torch: Any = pytorch()
    kind = getattr(torch, half)

    def ours(*shape: int) -> Any:
        return nnmpi.tensor(numbers(*shape))

    def theirs(*shape: int) -> Any:
        return torch.from_numpy(numbers(*shape))

    with nnmpi.autocast("cpu", dtype=half):
        y = cases.first(case(nnmpi, ours, lambda *shape: ours(*shape).to(half)))
    with torch.autocast("cpu", dtype=kind):
        z = cases.first(case(torch, theirs, lambda *shape: theirs(*shape).to(kind)))
    return y, z


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", cases.NARROW | cases.FLOAT32)
@pytest.mark.filterwarnings("ignore")
def test_results_have_the_same_types(name: str, half: str) -> None:
    if half == "float16" and name.startswith("LSTM") and name != "LSTMCell":
        pytest.skip("PyTorch has no LSTM in float16 on this processor")
    skip_lstm(name)
    y, z = results((cases.NARROW | cases.FLOAT32)[name], half)
    assert f"torch.{y.dtype}" == str(z.dtype)
    assert y.dtype == ("float32" if name in cases.FLOAT32 else half)


def types(result: Any) -> Any:
    """The types of the tensors in a result."""
    if isinstance(result, tuple):
        return [types(y) for y in result]
    return str(result.dtype).removeprefix("torch.")


@pytest.mark.parametrize("of_h", ["float32", "bfloat16", None])
@pytest.mark.parametrize("of_c", ["float32", "bfloat16"])
@pytest.mark.parametrize("of_x", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNCell"])
def test_states_have_the_same_types(name: str, of_x: str, of_c: str, of_h: str | None) -> None:
    skip_lstm(name)
    shape_x, shape, depth = ((3, 4), (3, 5), ()) if "Cell" in name else ((2, 3, 4), (2, 3, 5), (2,))

    def found(t: Any, tensor: Any) -> Any:
        def given(kind: str, *shape: int) -> Any:
            return tensor(numbers(*shape)).to(getattr(t, kind))

        layer, states = getattr(t.nn, name)(4, 5, *depth), None
        if of_h is not None:
            h = given(of_h, *shape)
            states = (h, given(of_c, *shape)) if "LSTM" in name else h
        with t.autocast("cpu", dtype=t.bfloat16):
            return types(layer(given(of_x, *shape_x), states))

    assert found(nnmpi, nnmpi.tensor) == found(pytorch(), pytorch().from_numpy)


@pytest.mark.parametrize("name", cases.SAME_NUMBERS)
@pytest.mark.filterwarnings("ignore")
def test_results_have_the_same_values(name: str) -> None:
    y, z = results(cases.SAME_NUMBERS[name], "bfloat16")
    # two roundings to 8 bits may be two units apart; a sum of products rounds its terms, too
    tolerance = 2e-5 if name in cases.WIDE else 2e-2
    values = z.detach().float().numpy()
    np.testing.assert_allclose(y.float().numpy(), values, tolerance, tolerance)


# ---- GradScaler


def mlp(n: Any) -> Any:
    return n.Sequential(n.Linear(12, 32), n.Tanh(), n.Linear(32, 32), n.ReLU(), n.Linear(32, 3))


def scaled(library: Any, model: Any, batches: Any, half: Any) -> tuple[list[Any], Any]:
    """The states of a scaler after each step, and the scaler."""
    opt = library.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    scaler = library.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=3)
    states = []
    for i, (x, y) in enumerate(batches):
        opt.zero_grad()
        with library.autocast("cpu", dtype=half, enabled=half is not None):
            loss = library.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        if i % 2:
            scaler.unscale_(opt)
            library.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        before = model[0].weight.detach().numpy().copy()
        scaler.step(opt)
        is_left_out = bool((before == model[0].weight.detach().numpy()).all())
        scaler.update()
        states.append((scaler.state_dict(), is_left_out))
    return states, scaler


@pytest.mark.parametrize("half", ["float16", None])
def test_scales_are_the_same(half: str | None) -> None:
    torch: Any = pytorch()
    torch.manual_seed(1)
    theirs, ours = mlp(torch.nn), mlp(nn)
    ours.load_state_dict({k: v.numpy().copy() for k, v in theirs.state_dict().items()})
    x, y = numbers(12, 16, 12), numbers(12, 16, 3)
    x[4, 0, 0], x[9, 3, 2], x[10, 1, 1] = np.inf, np.nan, -np.inf
    there, other = scaled(
        torch, theirs, zip(*map(torch.from_numpy, (x, y)), strict=True), half and torch.float16
    )
    here, scaler = scaled(nnmpi, ours, zip(*map(nnmpi.tensor, (x, y)), strict=True), half)
    assert here == there
    assert {left_out for _, left_out in here} == {True, False}
    scales = [state["scale"] for state, _ in here]
    assert max(scales[1:]) > min(scales)
    tolerance = 5e-3 if half else 1e-5
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=tolerance, atol=tolerance)
    other.load_state_dict(scaler.state_dict())
    scaler.load_state_dict(other.state_dict())
    assert scaler.state_dict() == other.state_dict() == here[-1][0]
