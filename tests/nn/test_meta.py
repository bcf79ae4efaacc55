"""Arrays without numbers, beside those of NumPy that they stand for."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import mpijob

import nnmpi
from nnmpi.arrays import meta
from nnmpi.arrays.meta import MetaArray, NumbersReadError
from nnmpi.arrays.meta.shapes import owner
from nnmpi.nn.graph_recorder import order_of

rng = np.random.default_rng(0)
X = rng.random((3, 4, 5, 6)).astype("float32")
PLACES = np.array([[2, 0], [1, 1]])
MASK = np.array([True, False, True])

ARRAYS: dict[str, Callable[[Any], Any]] = {
    "in order": lambda x: x,
    "channels last": lambda x: x.transpose(0, 3, 1, 2),
    "a part": lambda x: x[:, 1:3, ::2],
    "broadcast": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "with axes of length 1": lambda x: x[:, :1, :, :1].transpose(2, 0, 3, 1),
    "backwards": lambda x: x[:, ::-1],
    "empty": lambda x: x[:, :0],
    "in 16 bits": lambda x: x.astype("float16"),
    "integers": lambda x: x.astype("int64"),
}

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum of both": lambda x, y: x + y,
    "a number": lambda x, y: 2 * x - 1.5,
    "type of both": lambda x, y: x * np.arange(x.shape[-1], dtype="float64"),
    "comparison": lambda x, y: x > y,
    "two results": lambda x, y: np.modf(x)[1],
    "product": lambda x, y: x @ y.swapaxes(-1, -2),
    "product with a vector": lambda x, y: x @ np.ones(x.shape[-1], "float32"),
    "dot": lambda x, y: np.dot(x[..., 0], y[0, 0, :, 0]),
    "dot of numbers": lambda x, y: np.dot(x, 2.0),
    "sum": lambda x, y: x.sum(axis=(0, -1)),
    "sum of all": lambda x, y: x.sum(),
    "sum of wide numbers": lambda x, y: x.sum(axis=1, dtype="float64", keepdims=True),
    "mean": lambda x, y: x.mean(axis=2, keepdims=True),
    "variance": lambda x, y: x.var(axis=3),
    "any": lambda x, y: (x > 0).any(axis=1),
    "cumulated": lambda x, y: np.cumsum(x, axis=1),
    "accumulated": lambda x, y: np.add.accumulate(x, axis=2),
    "argmax": lambda x, y: x.argmax(axis=2),
    "argsort": lambda x, y: np.argsort(x, axis=-1, kind="stable"),
    "where": lambda x, y: np.where(x > 0.5, x, 0.0),
    "concatenate": lambda x, y: np.concatenate([x, y, x], axis=2),
    "stack": lambda x, y: np.stack([x, y], axis=1),
    "tile": lambda x, y: np.tile(x, (2, 1)),
    "repeat": lambda x, y: np.repeat(x, 3, axis=1),
    "take": lambda x, y: np.take(x, PLACES, axis=0),
    "take along": lambda x, y: np.take_along_axis(x, np.argsort(y, axis=-1), axis=-1),
    "einsum": lambda x, y: np.einsum("abcd,abed->aebc", x, y, optimize=True),
    "einsum of three": lambda x, y: np.einsum(
        "ab,bcd,abef->def", x[..., 0, 0], y[0], x, optimize=True
    ),
    "einsum of one": lambda x, y: np.einsum("abcd->dbca", x),
    "clip": lambda x, y: np.clip(x, 0, 1),
    "copy": lambda x, y: x.copy(),
    "copy as it is": lambda x, y: x.copy(order="K"),
    "astype": lambda x, y: x.astype("float64"),
    "itself": lambda x, y: x.astype(x.dtype, copy=False),
    "flatten": lambda x, y: x.flatten(),
    "reshape": lambda x, y: x.reshape(3, -1) if x.size else x.reshape(0),
    "reshape of a copy": lambda x, y: x.transpose(3, 1, 2, 0).reshape(-1),
    "transpose": lambda x, y: np.moveaxis(x, 1, -1),
    "like": lambda x, y: np.zeros_like(x, "float64"),
    "broadcast": lambda x, y: np.broadcast_to(x[0], (7, *x.shape[1:])),
    "an element": lambda x, y: x[0, 0, 0, 0] if x.size else x[0],
    "a new axis": lambda x, y: x[:, None, ..., 1:],
    "rows": lambda x, y: x[PLACES],
    "columns": lambda x, y: x[..., [0, 0]],
    "places apart": lambda x, y: x[PLACES, :, 0],
    "places together": lambda x, y: x[:, :, [0, 0], [0, 0]],
    "rows of a mask": lambda x, y: x[: len(MASK)][MASK[: len(x)]],
}


@pytest.mark.parametrize("array", ARRAYS)
def test_shape_type_layout_and_memory_are_those_of_real_arrays(array: str) -> None:
    for name, function in FUNCTIONS.items():
        x, a = (ARRAYS[array](whole) for whole in (X, meta.like(X)))
        y = np.ones(x.shape, x.dtype)
        with np.errstate(all="ignore"):
            try:
                wanted = np.asanyarray(function(x, y))
            except (ValueError, IndexError) as error:
                with pytest.raises(type(error)):
                    function(a, meta.like(y))
                continue
            found = function(a, meta.like(y))
        assert isinstance(found, MetaArray), name
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), name
        assert order_of(found) == order_of(wanted), name
        assert (owner(found) is owner(a)) == (owner(wanted) is owner(x)), name


DO_NOT_FIT: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x + x[:, 1:],
    "product": lambda x: x @ x,
    "product with a vector": lambda x: x @ x[0, 0, :, 0],
    "product of a vector": lambda x: x[0, 0, 0] @ x,
    "dot": lambda x: np.dot(x, x),
    "dot with a vector": lambda x: np.dot(x, x[0, 0, :, 0]),
    "einsum": lambda x: np.einsum("abcd,abed->ce", x, x[:, 1:], optimize=True),
    "concatenate": lambda x: np.concatenate([x, x[:, 1:]], axis=2),
    "stack": lambda x: np.stack([x, x[1:]]),
    "where": lambda x: np.where(x > 0, x, x[:, 1:]),
    "broadcast": lambda x: np.broadcast_to(x, (3, 4, 5, 7)),
    "reshape": lambda x: x.reshape(7, -1),
    "transpose": lambda x: x.transpose(0, 1, 1, 2),
}


@pytest.mark.parametrize("name", DO_NOT_FIT)
def test_shapes_that_do_not_fit_are_refused_as_numpy_does(name: str) -> None:
    with pytest.raises(ValueError) as wanted:  # noqa: PT011, its words are those of NumPy
        DO_NOT_FIT[name](X.copy())
    with pytest.raises(ValueError, match=re.escape(str(wanted.value))):
        DO_NOT_FIT[name](meta.like(X))


@pytest.mark.parametrize(
    "reads",
    [
        bool, float, np.linalg.norm, np.nonzero, np.median,
        lambda x: x.item(), lambda x: [1.0][x], lambda x: x[x > 0], lambda x: 1 in x,
        lambda x: x if (x > 0).all() else -x,
    ],
)  # fmt: skip
def test_what_asks_for_numbers_gets_none(reads: Callable[[Any], Any]) -> None:
    with pytest.raises(NumbersReadError):
        reads(meta.like(np.ones((), "int64") if reads in (float,) else X))


STARTS_MPI_LATE = """
import numpy as np
from nnmpi import Config, Trainer, nn
from nnmpi.comm import thread_ranks, world
data = np.ones((8, 4), "float32"), np.zeros(8, int)
thread_ranks.run(2, lambda comm: Trainer(Config(), lambda: nn.Linear(4, 2), data=data, comm=comm))
print(world().size)
"""


def test_mpi_starts_after_a_model_was_recorded() -> None:
    """It maps memory at an address that the launcher has chosen."""
    assert mpijob.run(1, "-c", STARTS_MPI_LATE)[:2] == (0, "1\n")


def without_data(*shape: int, requires_grad: bool = False) -> nnmpi.Tensor:
    return nnmpi.tensor(meta.like(np.zeros(shape)), requires_grad=requires_grad)


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "elements": lambda o, v: o.__setitem__((slice(None), slice(2)), v[:, :2]),
    "elements where": lambda o, v: o.__setitem__(v > 0, 1.0),
    "+=": lambda o, v: o.__iadd__(v),
    "add_": lambda o, v: o.add_(v),
    "copy_": lambda o, v: o.copy_(v),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_an_array_takes_no_values_without_data(write: str, requires_grad: bool) -> None:
    o = nnmpi.zeros(3, 4, dtype="float64")
    WRITES[write](o, without_data(3, 4, requires_grad=requires_grad))
    assert meta.is_meta(o.array)
    assert o.shape == (3, 4)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_nor_does_one_that_tensors_share(write: str, requires_grad: bool) -> None:
    o = nnmpi.zeros(3, 4, dtype="float64")
    first = o.detach()
    with pytest.raises(meta.NumbersReadError, match="memory that tensors share"):
        WRITES[write](o, without_data(3, 4, requires_grad=requires_grad))
    assert not first.array.any()
