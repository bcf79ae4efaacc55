"""Indices of integers, slices, arrays and masks: values, gradients and writes are PyTorch's."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn, optim

SHAPE = (2, 3, 4)
X = np.arange(24.0).reshape(SHAPE)

PARTS: tuple[Any, ...] = (
    0, -1, slice(None), slice(0, 2), None, ..., [1, 0], [[0, 1], [1, 0]], "integer", "array", "mask"
)  # fmt: skip


def part(n: Any, k: Any, length: int) -> Any:
    """The part of an index that a name stands for, in the library n."""
    if k == "integer":
        return n.tensor(1)
    if k == "array":
        return n.tensor([0, 1])
    return n.tensor(np.arange(length) % 2 == 0) if k == "mask" else k


def index_in(n: Any, names: tuple[Any, ...]) -> Any:
    """An index of SHAPE; a mask is as long as the axis at its place, if there is no ellipsis."""
    axis, parts = 0, []
    for k in names:
        parts.append(part(n, k, SHAPE[min(axis, 2)]))
        axis += k is not None and k is not ...
    return tuple(parts)


def run(n: Any, names: tuple[Any, ...]) -> list[np.ndarray]:
    x, index = n.tensor(X, requires_grad=True), index_in(n, names)
    y = x[index]
    weights = np.cos(np.arange(y.numel())).reshape(tuple(y.shape))
    (y * n.tensor(weights)).sum().backward()
    written = n.tensor(X)
    written[index] = 7.0
    of_graph = x * 2
    of_graph[index] = n.tensor(weights)
    return [t.detach().numpy() for t in (y, x.grad, written, of_graph)]


def is_valid(names: tuple[Any, ...]) -> bool:
    """False for two ellipses, and for more axes than there are."""
    return names.count(...) <= 1 and sum(k not in (None, ...) for k in map(_plain, names)) <= 3


def _plain(k: Any) -> Any:
    return 0 if isinstance(k, list | slice) else k


MIXED = [
    names
    for length in (2, 3, 4)
    for names in product(range(len(PARTS)), repeat=length)
    if is_valid(tuple(PARTS[k] for k in names))
]


@needs_torch
@pytest.mark.parametrize("first", range(len(PARTS)), ids=lambda k: str(PARTS[k]))
def test_results_gradients_and_writes_are_pytorchs(first: int) -> None:
    compared, rng = 0, np.random.default_rng(first)
    of_first = [names for names in MIXED if names[0] == first]
    for k in rng.permutation(len(of_first))[:150]:
        names = tuple(PARTS[i] for i in of_first[k])
        try:
            expected = run(pytorch(), names)
        except (IndexError, RuntimeError):  # masks or arrays that do not fit
            continue
        for ours, theirs in zip(run(nnmpi, names), expected, strict=True):
            assert ours.shape == theirs.shape, names
            np.testing.assert_allclose(ours, theirs, err_msg=str(names))
        compared += 1
    assert compared > 30


def test_axes_lie_where_pytorch_has_them() -> None:
    x = nnmpi.zeros(2, 3, 4, 5)
    assert x[0, :, [1, 2]].shape == (3, 2, 5)
    assert x[:, [0], :, 1].shape == (2, 1, 4)
    assert x[None, nnmpi.tensor(0), :, [1]].shape == (1, 3, 1, 5)
    x[0, :, [1, 2]] = nnmpi.ones(3, 2, 5)
    assert x.sum().item() == 30


def test_a_write_reaches_a_parameter_whose_store_reuses_its_memory() -> None:
    p = nnmpi.nn.Parameter(nnmpi.zeros(2, 3))
    assert p.store is not None
    p.store.rotates = True  # views of p are copies then
    with nnmpi.no_grad():
        p[1, [0, 2]] = 5.0
    assert p.store.value(0).tolist() == [[0, 0, 0], [5, 0, 5]]


VIEWS: dict[str, Callable[[Any], Any]] = {
    "a tensor": lambda x: x[nnmpi.tensor(1)],
    "a tensor of uint16": lambda x: x[nnmpi.tensor(np.array(1, "uint16"))],
    "an array": lambda x: x[np.array(1)],
    "beside a slice": lambda x: x[nnmpi.tensor(-1)][:],
    "in a tuple": lambda x: x[nnmpi.tensor(1), :],
    "beside an ellipsis": lambda x: x[..., nnmpi.tensor(1), :],
    "of a loop": lambda x: [x[i] for i in nnmpi.tensor([0, 1])][1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_an_integer_tensor_without_axes_selects_a_view(view: Callable[[Any], Any]) -> None:
    x = nnmpi.zeros(2, 3)
    view(x).add_(1)
    y = view(x)
    y += 1
    assert x.tolist() == [[0, 0, 0], [2, 2, 2]]


def test_a_gradient_flows_through_a_write_at_a_tensor() -> None:
    w = nnmpi.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x = w * 1
    for i in nnmpi.tensor([2, 0]):
        v = x[i]
        v *= w[i]
    x.sum().backward()
    assert (x.tolist(), w.grad.tolist()) == ([1, 2, 9], [2, 1, 6])


def test_an_index_of_uint8_is_refused() -> None:
    x, mask = nnmpi.zeros(3), nnmpi.tensor(np.array([0, 1, 0], "uint8"))
    for index in (mask, mask.numpy(), (mask, None)):
        with pytest.raises(TypeError, match=r"mask.*positions: write x\[i\.bool\(\)\]"):
            x[index]
        with pytest.raises(TypeError, match="uint8"):
            x[index] = 1.0
    assert x[np.uint8(2)].shape == ()


@pytest.mark.filterwarnings("ignore:.*it is not replayed")
def test_a_recorded_step_does_not_lose_a_write_at_an_argument() -> None:
    w = nn.Parameter(np.ones((3, 2), "float32"))
    opt = optim.SGD([w], lr=0.5)

    @nnmpi.compile
    def step(i: Any) -> Any:
        opt.zero_grad()
        y = w * 1
        v = y[i]
        v *= 3
        y.sum().backward()
        opt.step()

    for i in (0, 2):
        step(nnmpi.tensor(i))
    assert w.tolist() == [[-1, -1], [0, 0], [-1, -1]]


ROWS = {
    "repeated and negative": np.array([1, -1, 1, 3, 0, 1]),
    "in two axes": np.array([[1, -4], [1, 3], [0, 1]]),
    "none": np.zeros(0, np.int64),
    "every second": np.arange(8)[::2] % 3,
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("width", [(), (3,), (2, 3)], ids=str)
def test_gradients_of_chosen_rows_add_up_in_order(rows: np.ndarray, width: tuple[int, ...]) -> None:
    """To the bit as one after the other, where the gradient is a view in another order too."""
    rng = np.random.default_rng(0)
    x = nnmpi.tensor(rng.standard_normal((4, *width)).astype("float32"), requires_grad=True)
    g = rng.standard_normal((*width, *rows.shape[::-1])).astype("float32").T
    g = g.reshape(*rows.shape, *width)
    x[rows].backward(g)
    expected = np.zeros(x.shape, np.float32)
    for place in np.ndindex(rows.shape):
        expected[rows[place]] += g[place]
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), expected)


@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_are_chosen_in_any_order_of_memory(order: Any) -> None:
    x = np.asarray(np.arange(12, dtype="float32").reshape(4, 3), order=order)
    t = nnmpi.from_numpy(x)
    rows = np.array([[3, -4], [0, 3]])
    np.testing.assert_array_equal(t[rows].numpy(), x[rows])
    np.testing.assert_array_equal(t[rows.astype("int8")].numpy(), x[rows])
    for wrong in (4, -5):
        with pytest.raises(IndexError, match=f"{wrong} is out of bounds"):
            t[np.array([0, wrong])]
