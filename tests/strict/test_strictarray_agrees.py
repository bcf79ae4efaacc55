"""The stand-in for CuPy computes as NumPy does, and its tables agree with NumPy and CuPy."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import strictarray as xp
from strictarray._functions import NO_BFLOAT16_LOOP, SIGNATURES, UFUNCS, parse

from nnmpi import backend, keyed

HOST = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def x() -> xp.ndarray:
    return xp.asarray(HOST)


@pytest.mark.parametrize(
    ("scalar", "result"),
    [
        (2.0, "float32"),
        (2, "float32"),
        (True, "float32"),
        (np.float32(2), "float32"),
        (np.float64(2), "float64"),
        (np.int64(2), "float64"),
    ],
    ids=repr,
)
def test_scalars_promote_by_nep_50(scalar: Any, result: str, x: xp.ndarray) -> None:
    for y in (x * scalar, scalar * x, xp.multiply(x, scalar), x.sum() * scalar, scalar - x[0, 0]):
        assert type(y) is xp.ndarray
        assert y.dtype == result
    assert xp.where(x > 1, x, scalar).dtype == result
    with pytest.raises(OverflowError):
        xp.zeros(2, xp.int8) + 300


def test_float64_is_the_default() -> None:
    made = xp.zeros(2), xp.ones(2), xp.empty(2), xp.full(2, 0.5), xp.asarray(0.5), xp.linspace(0, 1)
    assert {a.dtype for a in made} == {np.dtype("float64")}
    assert xp.arange(3).dtype == xp.asarray([1, 2]).dtype == np.int64


def test_a_single_value_stays_an_array(x: xp.ndarray) -> None:
    total = x.sum()
    for y in (total, xp.sum(x), x[1, 2], x[0][0], -total, total + 1, xp.exp(total), x.argmax()):
        assert type(y) is xp.ndarray
        assert y.shape == ()
    assert type(xp.allclose(x, x)) is type(xp.count_nonzero(x)) is xp.ndarray


def test_slices_are_views_and_gathers_are_not(x: xp.ndarray) -> None:
    x[0][1] = 10
    element = x[1, 1]
    element += 20
    x.T[2, 0] = 30
    x.reshape(6)[3:4] = 40
    xp.lib.stride_tricks.as_strided(x, (1,), (4,))[0] = 50
    x[xp.asarray([0])][0, 0] = 99
    x[xp.asarray(1)][2] = 99
    assert x.tolist() == [[50, 10, 30], [40, 24, 5]]
    assert xp.lib.stride_tricks.sliding_window_view(x, 2, axis=1).shape == (2, 2, 2)


def test_nothing_is_shared_with_the_host(x: xp.ndarray) -> None:
    host = HOST.copy()
    device, back = xp.asarray(host), x.get()
    host += 1
    back += 1
    assert device.tolist() == x.tolist() == HOST.tolist()


def test_the_same_array_comes_back(x: xp.ndarray) -> None:
    out = xp.empty_like(x)
    assert xp.asarray(x) is x
    assert xp.asarray(x, xp.float32) is x
    assert x.astype("float32", copy=False) is x
    assert xp.multiply(x, 2, out=out) is out
    assert xp.multiply(x, 2, out) is out
    assert xp.matmul(x, x.T, out=xp.empty((2, 2), xp.float32)).shape == (2, 2)
    same = x
    same += 1
    assert same is x
    assert xp.array(x) is not x


def test_add_at_adds_once_for_every_occurrence() -> None:
    a = xp.zeros(3)
    xp.add.at(a, xp.asarray([0, 2, 0]), xp.asarray([1.0, 2.0, 4.0]))
    xp.add.at(a, (slice(1, 2),), 8)
    assert a.tolist() == [5, 8, 2]


def test_warnings_stay_on_the_host(x: xp.ndarray, recwarn: pytest.WarningsRecorder) -> None:
    _ = x / 0, xp.log(x - 9), xp.exp(x * 1e30), xp.float32(1) / x
    x /= 0
    assert not recwarn.list


def test_other_types_may_take_over_an_operator(x: xp.ndarray) -> None:
    class Graph:
        __array_ufunc__ = None

        def __radd__(self, other: Any) -> str:
            return "added"

        def __rmatmul__(self, other: Any) -> str:
            return "multiplied"

    assert (x + Graph(), x @ Graph()) == ("added", "multiplied")


SAME: dict[str, Callable[[Any, Any], Any]] = {
    "joins": lambda xp, x: xp.concatenate([x, xp.stack([x[0], x[1]])], axis=0),
    "pad": lambda xp, x: xp.pad(x, ((1, 0), (2, 2))),
    "einsum": lambda xp, x: xp.einsum("ij,kj->ik", x, x),
    "tensordot": lambda xp, x: xp.tensordot(x, x, axes=([1], [1])),
    "matmul": lambda xp, x: x.T @ x,
    "var": lambda xp, x: x.var(axis=1, ddof=1, keepdims=True),
    "softmax": lambda xp, x: xp.exp(x - x.max(axis=1, keepdims=True)),
    "take": lambda xp, x: xp.take_along_axis(x, xp.argsort(-x, axis=1), axis=1),
    "split": lambda xp, x: xp.split(x, [1, 2], axis=1)[1],
    "bits": lambda xp, x: (x.astype("uint32") ^ 0xFF) >> 3,
    "clip": lambda xp, x: x.clip(1, 3) + xp.clip(x, 2, 4),
    "compare": lambda xp, x: (x > 1) & ~(x == 3) | (x <= 2),
    "remainders": lambda xp, x: 7 % (x + 1) + x // 2 - 2**x,
    "shapes": lambda xp, x: xp.moveaxis(x[None], 0, -1).transpose(1, 0, 2).reshape(3, -1),
    "cumsum": lambda xp, x: xp.cumsum(x, axis=1) + xp.tril(xp.ones((2, 3), "float32")),
    "take rows": lambda xp, x: x.take([1, 0], axis=0) + x[[0, 0]],
}


@pytest.mark.parametrize("case", SAME.values(), ids=SAME)
def test_computes_as_numpy_does(case: Callable[[Any, Any], Any], x: xp.ndarray) -> None:
    expected, found = case(np, HOST), case(xp, x)
    assert type(found) is xp.ndarray
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.get(), expected)


def test_the_backend_knows_it(x: xp.ndarray) -> None:
    assert backend.xp_of(x) is xp
    assert backend.is_array(x)
    cuda = backend.Backend("cuda", xp)
    assert backend.of(x) == cuda
    assert cuda.asarray(x) is x
    assert type(cuda.asarray(HOST)) is xp.ndarray
    assert type(backend.CPU.asarray(x)) is np.ndarray


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_keyed_numbers_are_the_same(dtype: str) -> None:
    k = keyed.key(7, "dropout", 3)
    index = np.array([[0, 1, 2, 2**32 - 1, 2**40]], dtype)
    row = np.array([[0], [5], [2**33 + 1]], dtype)
    device = xp.asarray(index), xp.asarray(row)
    with xp.counting() as count:
        bits, normal = keyed.bits(k, *device), keyed.normal(k, *device)
    assert count.total == 0
    np.testing.assert_array_equal(bits.get(), keyed.bits(k, index, row))
    np.testing.assert_array_equal(normal.get(), keyed.normal(k, index, row))


FUNCTIONS = [(name, signature) for signature, group in SIGNATURES.items() for name in group.split()]


def _disagreements(library: Any, name: str, signature: str) -> list[str]:
    """Where our signature of a function promises more than the library's own.

    Options must be the library's, and those that go by position must be where
    it has them. What it calls arrays, and options that go by position alone
    (`dims`, `reps`), is not held against it.
    """
    try:
        parameters = inspect.signature(getattr(library, name)).parameters
    except ValueError:  # older versions of NumPy do not tell for what is written in C
        return []
    kinds, rest, options = parse(signature)
    behind = set(options[sum(kind.islower() for kind in kinds) :])
    takes_any = {p.kind for p in parameters.values()} & {inspect.Parameter.VAR_KEYWORD}
    bad = [] if takes_any else [f"{name} has no {option}" for option in behind - parameters.keys()]
    if rest or "args" in parameters:
        return bad
    order = [p.name for p in parameters.values() if p.kind < p.KEYWORD_ONLY]
    for place, kind in enumerate(kinds):
        option = kind.rstrip("!")
        if place >= len(order) or (option in parameters and order[place] != option):
            bad.append(f"{name} has no {option} at {place}")
    return bad


def test_signatures_are_numpys() -> None:
    assert not [bad for function in FUNCTIONS for bad in _disagreements(np, *function)]


def test_signatures_are_cupys() -> None:
    cupy = pytest.importorskip("cupy")
    assert not [bad for function in FUNCTIONS for bad in _disagreements(cupy, *function)]


def test_every_name_is_in_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    own = {"Count", "counting", "synchronisations", "tracemalloc"}
    names = {name for name in vars(xp) if not name.startswith("_")} - own
    assert not {name for name in names if not hasattr(cupy, name)}
    assert all(isinstance(getattr(cupy, name), cupy.ufunc) for name in UFUNCS)
    methods = set(dir(xp.ndarray)) - {"_a", "__weakref__"}
    assert not {name for name in methods if not hasattr(cupy.ndarray, name)}


def test_loops_without_bfloat16_are_cupys() -> None:
    cupy = pytest.importorskip("cupy")
    arguments = {
        name: "".join(t.split("->")[0] for t in getattr(cupy, name).types) for name in UFUNCS
    }
    floats = {name for name, letters in arguments.items() if "d" in letters}
    assert {name for name in floats if "E" not in arguments[name]} == NO_BFLOAT16_LOOP
