"""Recurrent layers: against PyTorch's, with all options; padding; dropout; what they refuse."""

from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device, waits
from helpers.in_pass import in_pass
from helpers.ops.oracle import needs_torch, same_as_pytorch

import nnmpi
from nnmpi import nn
from nnmpi.arrays import backend
from nnmpi.arrays.backend import to_host

T, N, K, H = 5, 4, 3, 6
LENGTHS = [3, 5, 1, 5]

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "RNN": ("RNN", {}),
    "RNN of ReLU": ("RNN", {"nonlinearity": "relu"}),
    "LSTM": ("LSTM", {}),
    "GRU": ("GRU", {}),
}
SHAPES: list[dict[str, Any]] = [
    {},
    {"bias": False, "batch_first": True},
    {"bidirectional": True},
    {"num_layers": 3, "batch_first": True},
    {"num_layers": 2, "bidirectional": True, "bias": False},
]


def inputs(batch_first: bool = False, dtype: str = "float64") -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.standard_normal((N, T, K) if batch_first else (T, N, K)).astype(dtype)


def as_tuple(state: Any) -> tuple[Any, ...]:
    return state if isinstance(state, tuple) else (state,)


def squares(values: Any) -> Any:
    """The sum of the squares of all elements, each set of values with a weight of its own."""
    return sum(k * (v * v).sum() for k, v in enumerate(values, 1))


def read(n: Any, layer: Any, x: Any, states: Any, lengths: Any, first: bool) -> Any:
    """What a layer makes of sequences of these lengths, or of whole ones."""
    if lengths is None:
        return layer(x, states)
    if n is nnmpi:
        return layer(x, states, lengths=lengths)
    rnn = n.nn.utils.rnn
    packed = rnn.pack_padded_sequence(x, lengths, first, enforce_sorted=False)
    y, state = layer(packed, states)
    return rnn.pad_packed_sequence(y, first, total_length=T)[0], state


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=str)
def test_equal_words_give_what_different_inputs_would(lengths: Any) -> None:
    """The product of a row of the table is computed once; `* 1` hides that it is one."""
    words, found = np.arange(T * N).reshape(T, N) % 7, []
    for hidden in (False, True):
        with nnmpi.seeded(0):
            table, layer = nn.Embedding(7, K), nn.LSTM(K, H)
        x = table(words) * 1 if hidden else table(words)
        y, _ = layer(x, lengths=lengths)
        squares([y]).backward()
        found.append([y.numpy(), *(p.grad.numpy() for p in (table.weight, *layer.parameters()))])
    for once, each in zip(*found, strict=True):
        np.testing.assert_allclose(once, each, rtol=1e-4, atol=1e-6)


@pytest.mark.one_in(3)
@needs_torch
@pytest.mark.parametrize("lengths", [None, LENGTHS, [2, 3, 3, 1]], ids=str)
@pytest.mark.parametrize("given", [False, True], ids=["from zero", "from given states"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_pytorchs(
    kind: str, shape: Any, given: bool, lengths: Any
) -> None:
    (name, options), first = KINDS[kind], shape.get("batch_first", False)
    copies = shape.get("num_layers", 1) * (2 if "bidirectional" in shape else 1)
    draws = np.random.default_rng(1).standard_normal((2, copies, N, H))
    states = draws[: 2 if name == "LSTM" else 1] if given else ()

    def program(n: Any, layer: Any, x: Any, *states: Any) -> Any:
        start = (states if name == "LSTM" else states[0]) if given else None
        y, last = read(n, layer, x, start, lengths, first)
        return y, *as_tuple(last)

    make = lambda nn: getattr(nn, name)(K, H, **shape, **options)  # noqa: E731
    same_as_pytorch(program, inputs(first), *states, make=make, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_not_read(kind: str) -> None:
    """Each sequence gives what it gives alone and without padding; NaN in padding is not seen."""
    name, options = KINDS[kind]
    layer = getattr(nn, name)(K, H, 2, bidirectional=True, **options).to("float64")
    x = inputs()
    for n, length in enumerate(LENGTHS):
        x[length:, n] = np.nan
    t = nnmpi.tensor(x, requires_grad=True)
    y, state = layer(t, lengths=nnmpi.tensor(LENGTHS))
    squares((y, *as_tuple(state))).backward()
    for n, length in enumerate(LENGTHS):
        alone, last = layer(nnmpi.tensor(x[:length, n : n + 1]))
        np.testing.assert_allclose(y.numpy()[:length, n], alone.numpy()[:, 0], atol=1e-14)
        assert not y.numpy()[length:, n].any()
        assert not t.grad[length:, n].any()
        for s, expected in zip(as_tuple(state), as_tuple(last), strict=True):
            np.testing.assert_allclose(s.numpy()[:, n], expected.numpy()[:, 0], atol=1e-14)
    assert np.isfinite(t.grad).all()


def test_a_sequence_without_positions_keeps_its_state() -> None:
    layer, h = nn.GRU(K, H, bidirectional=True), np.random.default_rng(3).standard_normal((2, N, H))
    y, last = layer(inputs(dtype="float32"), h.astype("float32"), [0, 5, 0, 2])
    np.testing.assert_array_equal(last.numpy()[:, [0, 2]], h[:, [0, 2]].astype("float32"))
    assert not y.numpy()[:, [0, 2]].any()


def masks(layer: nn.Module, samples: list[int], step: int, T: int = T) -> np.ndarray:
    """The outputs for these samples of ones, which dropout between layers makes differ."""
    with in_pass(step, samples):
        return np.asarray(layer(np.ones((len(samples), T, K), "float32"))[0].numpy())


def test_dropout_between_layers_is_keyed_by_sample_and_position() -> None:
    layer = nn.RNN(K, H, 3, batch_first=True, dropout=0.5)
    whole = masks(layer, [0, 1, 2, 3], 0)
    np.testing.assert_array_equal(masks(layer, [2, 0], 0), whole[[2, 0]])
    np.testing.assert_array_equal(masks(layer, [2, 0], 0, T - 2), whole[[2, 0], : T - 2])
    assert len({y.tobytes() for y in (*whole, *masks(layer, [0, 1], 1))}) == 6
    twin = nn.RNN(K, H, 3, dropout=0.5)
    with in_pass(0, [0, 1, 2, 3]):
        assert twin(np.ones((T, 4, K), "float32"))[0].shape == (T, 4, H)
    layer.eval()
    assert len({y.tobytes() for y in masks(layer, [0, 1, 2], 0)}) == 1
    assert len({y.tobytes() for y in masks(nn.RNN(K, H, batch_first=True), [0, 1, 2], 0)}) == 1


def test_dropout_drops_its_share_and_scales_the_rest() -> None:
    """Of an identity as second layer: 1 becomes 0 or 2."""
    layer = nn.RNN(1, 200, 2, "relu", bias=False, dropout=0.5)
    layer.weight_ih_l0.data[...] = 1
    layer.weight_ih_l1.data[...] = np.eye(200)
    for p in (layer.weight_hh_l0, layer.weight_hh_l1):
        p.data[...] = 0
    y, _ = layer(np.ones((20, 3, 1), "float32"))
    values, counts = np.unique(y.numpy(), return_counts=True)
    assert values.tolist() == [0, 2]
    assert abs(counts[0] / counts.sum() - 0.5) < 0.02


@needs_device
@pytest.mark.one_in(2)
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_device_gives_the_same_without_waits(kind: str, lengths: Any) -> None:
    name, options = KINDS[kind]

    def run(on: Any) -> list[np.ndarray]:
        layer = getattr(nn, name)(K, H, 2, bidirectional=True, dropout=0.3, **options)
        layer.seed = 1  # its weights do not depend on the layers before it
        layer.to("float32", on)
        x = nnmpi.tensor(on.asarray(inputs(dtype="float32")), requires_grad=True, on=on)
        y, state = layer(x, lengths=lengths)
        total = y.sum()
        for s in as_tuple(state):
            total = total + (s * s).sum()
        total.backward()
        found = [y, *as_tuple(state), x.grad_array, *(p.grad_array for p in layer.parameters())]
        return [v.array if isinstance(v, nnmpi.Tensor) else v for v in found]

    with waits(0):
        device = run(DEVICE)
    for a, b in zip(map(to_host, device), run(backend.CPU), strict=True):
        assert (a.shape, a.dtype) == (b.shape, np.float32)
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * np.abs(b).max())


def test_several_passes_may_be_under_way() -> None:
    """Each backward pass sees what its own forward pass has kept."""
    layer = nn.LSTM(K, H).to("float64")
    xs = [nnmpi.tensor(inputs() + k, requires_grad=True) for k in range(2)]
    alone = []
    for x in xs:
        layer(x)[0].sum().backward()
        alone.append(x.grad_array)
        x.grad = None
    for total in [layer(x)[0].sum() for x in xs]:
        total.backward()
    for x, expected in zip(xs, alone, strict=True):
        np.testing.assert_array_equal(x.grad, expected)


def test_its_repr_has_the_options_that_are_not_defaults() -> None:
    layer = nn.LSTM(3, 4, 2, batch_first=True, dropout=0.5, bidirectional=True)
    expected = "3, 4, num_layers=2, batch_first=True, dropout=0.5, bidirectional=True"
    assert repr(layer) == f"LSTM({expected})"
    assert repr(nn.RNN(3, 4, nonlinearity="relu")) == "RNN(3, 4, nonlinearity='relu')"
