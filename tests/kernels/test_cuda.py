"""Kernels in CUDA against NumPy."""

from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE, moved, needs_device
from helpers.kernels import halves
from helpers.kernels.numbers import one_of
from test_table import CASES, Seeds, arrays_of, bits, copies

import nnmpi
from nnmpi.addons.cuda.kernels import KERNELS as OF_CUDA
from nnmpi.arrays import backend
from nnmpi.arrays.dtypes import HALVES, is_half
from nnmpi.arrays.native.table import KERNELS as TABLE

pytestmark = needs_device

DRAWS = 40
KERNELS = {name: kernel for name, kernel in OF_CUDA.items() if name in TABLE}
"""Those of loops that are here: some loops are of add-ons."""
EXACT = {name for name in KERNELS if not CASES[name][1]}
"""The kernels whose bits are NumPy's; the others add in another order, and have another exp."""


OF_SUMS = "sums_loop", "sum_loop", "squares_loop", "moments_loop"
CLOSE = {
    name: close * (10 if name.endswith(OF_SUMS) else 1) for name, (_, close, _) in CASES.items()
}
"""How far they may be from NumPy: further for sums, which are added in other orders."""


def test_the_device_is_available() -> None:
    assert nnmpi.cuda.is_available()


def on_device(args: list[Any]) -> list[Any]:
    """The same arguments, in the same memory layout."""
    return [moved(a) if isinstance(a, np.ndarray) else a for a in args]


def from_device(args: list[Any]) -> list[Any]:
    return [backend.to_host(a) if backend.is_array(a) else a for a in args]


def flushed(args: list[Any]) -> list[Any]:
    """The arguments with 0 in the place of denormals, which CuPy's kernels do not know."""
    found = copies(args)
    for a in arrays_of(found):
        if a.dtype.kind == "f" or is_half(a.dtype):
            small = abs(a) < np.finfo("float32").tiny
            a[small] = np.copysign(a.dtype.type(0), a[small])
    return found


def agree(name: str, args: list[Any], message: object = "") -> None:
    """The kernel took these arguments, and has written what NumPy writes."""
    args = flushed(args)
    numpys, mine = copies(args), on_device(args)
    with np.errstate(all="ignore"):
        TABLE[name].reference(*numpys)
    assert KERNELS[name](*mine) is None, message
    host, numpys = flushed(from_device(mine)), flushed(numpys)
    if name in EXACT:
        assert bits(host) == bits(numpys), message
    close = CLOSE[name]
    for a, b in zip(arrays_of(host), arrays_of(numpys), strict=True):
        largest = np.max(abs(b), where=np.isfinite(b), initial=0)
        np.testing.assert_allclose(a, b, rtol=0, atol=close * largest, err_msg=str(message))


WIDE_AT = {
    **dict.fromkeys(("adam_loop", "rmsprop_loop"), (0, 2, 3, 4, 5)),
    "sgd_loop": (0, 2, 3),
    "squares_loop": (2,),
    "decide_loop": (1, 4, 5),
    "layer_norm_loop": (4, 5),
    "layer_norm_gradient_loop": (3, 4),
    "rms_norm_loop": (3,),
    "layer_norm_sums_loop": (2, 3, 4, 5),
    "rms_norm_gradient_loop": (3,),
    "rms_norm_sum_loop": (2, 3),
    "moments_loop": (1, 2),
    "tracked_moments_loop": (1, 2, 3, 4),
    "batch_norm_loop": (1, 2, 8),
    "batch_norm_sums_loop": (3, 4, 6),
    "class_losses_loop": (3, 4, 7),
    "class_gradient_loop": (2, 3, 7),
    **dict.fromkeys(("normalise_loop", "normalise_silu_loop"), (1, 2)),
    "norm_sums_loop": (2, 3, 4),
    "norm_gradient_loop": (2, 3, 4, 5),
    "batch_norm_gradient_loop": (2, 3, 4, 5),
}
"""Which arrays stay as they are where others have 16 bits: masters, statistics and sums."""
OF_FLOAT32 = {
    *("track_loop", "probabilities_loop", "scores_gradient_loop", "sum_losses_loop"),
}
"""Statistics, and scores and losses in float32, alone."""


@pytest.mark.all_add_ons
def test_each_is_of_a_loop_in_the_table() -> None:
    assert OF_CUDA.keys() <= TABLE.keys()


def drawn(name: str, seed: int, dtype: str = "float32") -> list[Any]:
    """Arguments that the kernel takes."""
    rng = np.random.default_rng(seed)
    args = CASES[name][0](rng, "float32")
    if dtype == "float32":
        return args
    wide = WIDE_AT.get(name, ())
    with np.errstate(all="ignore"):
        return [a if i in wide else halves.narrowed(a, dtype, rng, 1.0) for i, a in enumerate(args)]


@pytest.mark.parametrize("name", KERNELS)
def test_it_computes_what_numpy_does(name: str, seeds: Seeds) -> None:
    for seed in seeds(DRAWS):
        agree(name, drawn(name, seed), seed)


def halved(value: Any) -> Any:
    """Half a number, or an array of halves; whole numbers stay as they are."""
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        return np.asarray(value / np.float32(2))
    return value / 2 if isinstance(value, float) else value


@pytest.mark.parametrize("name", KERNELS)
def test_a_call_like_one_before_takes_its_own_arrays_and_numbers(name: str) -> None:
    for seed in range(3):
        args = drawn(name, seed)
        agree(name, args, seed)
        agree(name, [halved(value) for value in args], seed)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", [name for name in KERNELS if name not in OF_FLOAT32])
def test_it_computes_16_bits_in_float32_and_rounds_once(
    name: str, dtype: str, seeds: Seeds
) -> None:
    for seed in seeds(DRAWS // 2):
        mine = flushed(drawn(name, seed, dtype))
        there, wide = on_device(mine), halves.widened(mine)
        if name in VALUES_AT and mine[VALUES_AT[name]] is not None:
            wide[VALUES_AT[name]] = mine[VALUES_AT[name]]
        with np.errstate(all="ignore"):
            TABLE[name].reference(*wide)
        assert KERNELS[name](*there) is None, seed
        close = CLOSE[name]
        for a, b in zip(arrays_of(from_device(there)), arrays_of(wide), strict=True):
            with np.errstate(all="ignore"):
                rounded = b.astype(a.dtype)
            if not close:
                assert bits(flushed([a])) == bits(flushed([rounded])), seed
                continue
            largest = np.max(abs(b), where=np.isfinite(b), initial=0)
            near = close + halves.UNIT[dtype] if is_half(a.dtype) else close
            a, b = (x.astype("f8") for x in (a, b if close else rounded))
            np.testing.assert_allclose(a, b, rtol=0, atol=near * largest, err_msg=str(seed))


VALUES_AT = {"adam_loop": 5, "sgd_loop": 3, "rmsprop_loop": 5}
"""Where steps have values in 16 bits."""


@pytest.mark.parametrize("goes", [True, False])
@pytest.mark.parametrize("name", VALUES_AT)
def test_a_step_is_made_as_the_device_has_decided(name: str, goes: bool) -> None:
    for seed in range(DRAWS // 4):
        *given, factor = flushed(drawn(name, seed))
        plain, mine, composed = (on_device(copies(given)) for _ in range(3))
        if goes:
            KERNELS[name](*plain, factor)
        by = DEVICE.asarray(np.array([factor, goes], "float32"))
        assert KERNELS[name](*mine, by) is None
        TABLE[name].reference(*composed, by)
        expected = bits(flushed(from_device(plain)))
        assert bits(flushed(from_device(mine))) == expected, seed
        assert bits(flushed(from_device(composed))) == expected, seed


SIZES = [
    pytest.param(n, C, dtype, marks=pytest.mark.long if n == 600 and dtype != "int64" else ())
    for dtype in ("int64", "int32", "uint8")
    for n, C in ((3, 33), (2, 255), (2, 256), (5, 1000), (700, 10), (600, 40))
]


@pytest.mark.parametrize(("n", "C", "dtype"), SIZES)
def test_cross_entropy_of_many_rows_and_classes(n: int, C: int, dtype: str) -> None:
    rng = np.random.default_rng(n + C)
    z = (10 * rng.standard_normal((n, C))).astype("float32")
    labels = rng.integers(0, min(C, 256), n).astype(dtype)
    for loss in (np.zeros(n, "float32"), np.zeros((), "float32")):
        agree(
            "class_losses_loop", [z, labels, 1 / n, loss, np.zeros((2, n), "f"), np.zeros(n, int)]
        )


def test_the_same_scores_give_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    z, labels = rng.standard_normal((300, 1000)).astype("float32"), rng.integers(0, 1000, 300)
    found = set()
    for _ in range(3):
        args = on_device(
            [z, labels, 1.0, np.zeros((), "f"), np.zeros((2, 300), "f"), np.zeros(300, int)]
        )
        KERNELS["class_losses_loop"](*args)
        found.add(from_device(args)[3].tobytes() + from_device(args)[4].tobytes())
    assert len(found) == 1


def test_a_label_that_is_no_class_gives_nan_and_reads_nothing() -> None:
    z, labels = np.zeros((3, 4), "float32"), np.array([0, 4, -1])
    args = on_device([z, labels, 1.0, np.zeros(3, "f"), np.zeros((2, 3), "f"), np.zeros(3, int)])
    KERNELS["class_losses_loop"](*args)
    np.testing.assert_array_equal(np.isnan(from_device(args)[3]), [False, True, True])


def spoilt(args: list[Any], rng: np.random.Generator, takes_wide: int | None = None) -> list[Any]:
    """Arguments of which one array is float64, or has gaps, but that one which may be float64."""
    arrays = [i for i, a in enumerate(args) if isinstance(a, np.ndarray) and a.dtype == "float32"]
    i = one_of(rng, *(i for i in arrays if i != takes_wide))
    if rng.random() < 0.5 or args[i].ndim == 0 or args[i].shape[-1] == 1:
        return [*args[:i], DEVICE.asarray(args[i].astype("float64")), *args[i + 1 :]]
    wide = DEVICE.asarray(np.repeat(args[i], 2, -1))
    return [*args[:i], wide[..., ::2], *args[i + 1 :]]


@pytest.mark.parametrize("name", KERNELS)
def test_arguments_that_it_is_not_made_for_are_left_alone(name: str, seeds: Seeds) -> None:
    for seed in seeds(DRAWS):
        rng = np.random.default_rng(seed)
        takes_wide = 0 if name == "decide_loop" else None
        args = on_device(spoilt(CASES[name][0](rng, "float32"), rng, takes_wide))
        before = bits(from_device(args))
        assert KERNELS[name](*args) is NotImplemented, seed
        assert bits(from_device(args)) == before, seed


def test_the_compiler_is_that_of_the_cuda_that_runs() -> None:
    """Not one of another CUDA that is installed too."""
    cuda = DEVICE.xp.cuda
    assert cuda.nvrtc.getVersion()[0] == cuda.runtime.runtimeGetVersion() // 1000
