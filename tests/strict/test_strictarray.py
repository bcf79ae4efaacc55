"""The stand-in for CuPy refuses what CuPy refuses, and counts the waits of the host."""

import copy
import operator
import pickle
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import strictarray as xp

from nnmpi import backend

HOST = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def x() -> xp.ndarray:
    return xp.asarray(HOST)


REFUSED: dict[str, Callable[[xp.ndarray], Any]] = {
    "np.asarray": np.asarray,
    "np.array of a list": lambda x: np.array([x, x]),
    "np.sum": np.sum,
    "np.add": lambda x: np.add(x, 1),
    "np.exp": np.exp,
    "np.concatenate": lambda x: np.concatenate([x, x]),
    "np.copyto": lambda x: np.copyto(HOST.copy(), x),
    "np.testing": lambda x: np.testing.assert_array_equal(x, HOST),
    "device + host": lambda x: x + HOST,
    "host + device": lambda x: HOST + x,
    "host @ device": lambda x: HOST.T @ x,
    "device += host": lambda x: operator.iadd(x, HOST),
    "host += device": lambda x: operator.iadd(HOST.copy(), x),
    "device == host": lambda x: x == HOST,
    "device + 0-d host": lambda x: x + np.array(1.0),
    "device + list": lambda x: x.__add__([1, 2, 3]),
    "device == None": lambda x: x == None,  # noqa: E711
    "device + IntEnum": lambda x: x + IntEnum("Side", "LEFT")(1),
    "ufunc of a host array": lambda x: xp.add(x, HOST),
    "ufunc of a list": lambda x: xp.exp([1.0, 2.0]),
    "ufunc with where": lambda x: xp.add(x, x, where=x > 1),
    "host out": lambda x: xp.add(x, x, out=HOST.copy()),
    "host out of a function": lambda x: xp.sum(x, axis=0, out=HOST[0].copy()),
    "out of another kind": lambda x: xp.add(x, x, out=xp.zeros((2, 3), xp.int32)),
    "in place into another kind": lambda x: operator.imul(xp.ones(3, xp.int32), 1.5),
    "sum of a list": lambda x: xp.sum([1, 2]),
    "sum of a scalar": lambda x: xp.sum(1.0),
    "sum with where": lambda x: xp.sum(x, where=x > 1),
    "max with initial": lambda x: x.max(initial=0),
    "argmax with an out by position": lambda x: xp.argmax(x, 0, xp.zeros(3, xp.int64)),
    "concatenate of host arrays": lambda x: xp.concatenate([x, HOST]),
    "where of a bool": lambda x: xp.where(True, x, x),
    "where of host arrays": lambda x: xp.where(x > 1, x, HOST),
    "clip with one bound": lambda x: xp.clip(x, 0.0),
    "einsum with out": lambda x: xp.einsum("ij->ji", x, out=x),
    "take_along_axis without axis": lambda x: xp.take_along_axis(x, x.argsort(axis=1)),
    "a shape on the device": lambda x: xp.zeros(x.sum()),
    "an axis on the device": lambda x: xp.sum(x, axis=xp.asarray(1)),
    "reshaping to a device integer": lambda x: x.reshape(xp.asarray(6)),
    "clip to a list": lambda x: x.clip([1, 2, 3]),
    "float32": xp.float32,
    "range": lambda x: range(xp.asarray(3)),
    "a slice up to a device integer": lambda x: x[: xp.asarray(1)],
    "a host index": lambda x: x[np.array([0, 1])],
    "a host index in a tuple": lambda x: x[:, np.array([0, 1])],
    "a host mask": lambda x: x[HOST > 1],
    "setting a host array": lambda x: x.__setitem__(slice(None), HOST),
    "setting a list": lambda x: x.__setitem__(0, [1, 2, 3]),
    "filling with a host array": lambda x: x.fill(np.array(1.0)),
    "objects": lambda x: xp.asarray(["a"]),
    "long doubles": lambda x: x.astype(np.longdouble),
    "add.at of int64": lambda x: xp.add.at(xp.zeros(2, xp.int64), xp.asarray([0]), 1),
    "hash": hash,
    "len of a 0-d array": lambda x: len(x.sum()),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refuses_as_cupy_does(case: Callable[[xp.ndarray], Any], x: xp.ndarray) -> None:
    with pytest.raises(TypeError):
        case(x)


@pytest.mark.parametrize("name", ["errstate", "erf", "block", "insert", "vecdot", "random", "nope"])
def test_names_that_cupy_lacks_are_missing(name: str) -> None:
    assert not hasattr(xp, name)


@pytest.mark.parametrize("name", ["ctypes", "resize", "itemset", "__array_interface__", "colour"])
def test_attributes_that_cupy_lacks_are_missing(name: str, x: xp.ndarray) -> None:
    assert not hasattr(x, name)
    with pytest.raises(AttributeError):
        setattr(x, name, 1)


@pytest.mark.parametrize("name", ["reduce", "reduceat", "accumulate", "outer"])
def test_a_ufunc_has_at_and_nothing_else(name: str) -> None:
    assert not hasattr(xp.add, name)
    assert not hasattr(xp.maximum, "at")


def test_index_out_of_range_raises_where_cupy_would_wrap(x: xp.ndarray) -> None:
    far = xp.asarray([0, 2])
    for read in (lambda: x[far], lambda: x[[0, 2]], lambda: xp.take(x, far, axis=0)):
        with pytest.raises(IndexError):
            read()
    with pytest.raises(IndexError):
        x[far] = 0


def test_what_a_gpu_decides_by_chance_raises(x: xp.ndarray) -> None:
    line = xp.arange(6)
    with pytest.raises(ValueError, match="occurs twice"):
        line[xp.asarray([1, 1])] = xp.asarray([5, 6])
    with pytest.raises(ValueError, match="overlap"):
        line[1:] = line[:-1]
    line[xp.asarray([1, 1])] = 7
    line[xp.asarray([2, 3])] = xp.asarray([8, 9])
    line[2:] = line[2:]
    assert line.tolist() == [0, 7, 8, 9, 4, 5]


def test_empty_arrays_are_not_zero_by_luck(x: xp.ndarray) -> None:
    assert bool(xp.isnan(xp.empty((2, 2))).all())
    assert bool((xp.empty_like(x, dtype=xp.int32) == 2**31 - 1).all())


WAITS: dict[str, Callable[[xp.ndarray], Any]] = {
    "get": lambda x: x.get(),
    "asnumpy": xp.asnumpy,
    "to_host": backend.to_host,
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "tobytes": lambda x: x.tobytes(),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "complex": lambda x: complex(x.sum()),
    "bool": lambda x: 1 if x.any() else 0,
    "and": lambda x: x.any() and None,
    "repr": repr,
    "str": str,
    "format": lambda x: f"{x.sum():.3f}",
    "pickle": pickle.dumps,
    "iteration over elements": lambda x: list(x[0]),
    "unpacking": lambda x: (lambda a, b, c: a)(*x[0]),
    "x[mask]": lambda x: x[x > 1],
    "x[list of bools]": lambda x: x[[True, False]],
    "x[mask] = 0": lambda x: x.__setitem__(x > 1, 0),
    "add.at(x, mask)": lambda x: xp.add.at(x, x > 1, 1),
    "nonzero": xp.nonzero,
    "x.nonzero": lambda x: x.nonzero(),
    "flatnonzero": xp.flatnonzero,
    "argwhere": xp.argwhere,
    "where of one": lambda x: xp.where(x > 1),
    "unique": xp.unique,
    "bincount": lambda x: xp.bincount(xp.asarray([0, 2])),
}

FREE: dict[str, Callable[[xp.ndarray], Any]] = {
    "host to device": lambda x: xp.asarray(HOST),
    "set": lambda x: x.set(HOST),
    "arithmetic": lambda x: xp.exp(x @ x.T - 1.0) ** 2,
    "reductions": lambda x: (x.sum(), x.max(axis=0), xp.mean(x), x.argmax()),
    "shape and type": lambda x: (x.shape, len(x), x.dtype, x.nbytes, xp.result_type(x, x)),
    "slices": lambda x: (x[0], x[0, 1], x[:, ::-1], x[None], x[..., 0]),
    "index arrays": lambda x: (x[xp.asarray([1, 0])], x[xp.asarray(1)], x[[0, 0]]),
    "setting by index": lambda x: x.__setitem__(xp.asarray([1, 0]), 0),
    "where of three": lambda x: xp.where(x > 1, x, 0),
    "copyto with where": lambda x: xp.copyto(x, 0, where=x > 1),
    "iteration over rows": list,
    "copies": lambda x: (x.copy(), copy.copy(x), copy.deepcopy(x), x.astype("int32")),
    "comparison": lambda x: (x == x, xp.array_equal(x, x), xp.allclose(x, 1)),
    "sharing": lambda x: xp.shares_memory(x, x[0]),
}


@pytest.mark.parametrize("case", WAITS.values(), ids=WAITS)
def test_counts_what_waits(case: Callable[[xp.ndarray], Any], x: xp.ndarray) -> None:
    before = xp.synchronisations.total
    with xp.counting() as count:
        case(x)
    assert count.total == 1, count
    assert xp.synchronisations.total == before + 1


@pytest.mark.parametrize("case", FREE.values(), ids=FREE)
def test_does_not_count_what_does_not_wait(
    case: Callable[[xp.ndarray], Any], x: xp.ndarray
) -> None:
    with xp.counting() as count:
        case(x)
    assert count.total == 0, count


def test_counts_nest_and_close(x: xp.ndarray) -> None:
    with xp.counting() as outer:
        x.get()
        with xp.counting() as inner:
            x.sum().item()
        float(x.sum())
    x.get()
    assert (inner.names, outer.names) == (["item"], ["get", "item", "float"])
