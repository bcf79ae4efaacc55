"""Each compiled kernel against NumPy, on every set of instructions that this processor has."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers.kernels import cases, halves, products
from helpers.kernels.numbers import Rng, by_window, numbers, one_of, windows

from nnmpi.arrays import native
from nnmpi.arrays.dtypes import HALVES, is_half
from nnmpi.arrays.kernels import conv, steps  # noqa: F401 - they fill the table
from nnmpi.arrays.native.table import KERNELS
from nnmpi.comm.transport import node_barrier  # noqa: F401 - fills the table

MODULES = dict(native.modules())
DRAWS = 30
FUSED = {
    *("products_loop", "direct_outputs", "direct_gradients"),
    *("linear_outputs", "linear_gradients", "mlp_outputs", "mlp_gradients"),
    *("attention_loop", "attention_gradient_loop"),
}
"""They add products that are not rounded, for which the baseline has no instruction."""

ONLY_IN_CUDA = {
    *("column_sum_loop", "add_sorted_loop", "probabilities_loop", "scores_gradient_loop"),
    *("tracked_moments_loop", "track_loop", "decide_loop"),
    *("class_losses_loop", "class_gradient_loop", "sum_losses_loop"),
    *("batch_norm_loop", "batch_norm_sums_loop", "batch_norm_gradient_loop"),
    *("normalise_silu_loop", "silu_gradient_loop"),
}
"""On the host NumPy is fast at them, or they are several others."""

Draw = Callable[[Rng, Any], list[Any]]
Seeds = Callable[[int], range]


def length(rng: Rng) -> int:
    return int(rng.choice([1, 3, 8, 16, 17, 64, 100, 1000, 20_011]))


def scaled(rng: Rng, dtype: Any) -> list[Any]:
    return [numbers(rng, length(rng), dtype), 0.3]


def values(rng: Rng, p: np.ndarray) -> Any:
    """Values of 16 bits, of which p are masters; some were written since they were rounded."""
    if p.dtype != np.float32 or rng.random() < 0.5:
        return None
    with np.errstate(all="ignore"):
        found = p.astype(one_of(rng, *HALVES))
    found[rng.random(len(p)) < one_of(rng, 0, 0.01)] = 1.5
    return found


def factor(rng: Rng, dtype: Any) -> float:
    return float(one_of(rng, 1.0, 0.3)) if dtype == "float32" else 1.0


def adam(rng: Rng, dtype: Any) -> list[Any]:
    p, g, m, v, top = (numbers(rng, (n := length(rng)) if i == 0 else n, dtype) for i in range(5))
    decay, shrink = one_of(rng, (0.0, 1.0), (0.1, 1.0), (0.0, 0.99), (0.1, 0.99))
    largest = one_of(rng, None, abs(top))
    given = (0.9, 0.999, 1e-3, 1e-8, decay, shrink, factor(rng, dtype))
    return [p, g, m, abs(v), largest, values(rng, p), *given]


def sgd(rng: Rng, dtype: Any) -> list[Any]:
    n = length(rng)
    p, g, v = (numbers(rng, n, dtype) for _ in range(3))
    velocity, momentum, direct = one_of(rng, (None, 0.0, True), (v, 0.9, False), (v, 0.9, True))
    given = (momentum, one_of(rng, 0.0, 0.1), 0.01, 0.009, direct, factor(rng, dtype))
    return [p, g, velocity, values(rng, p), *given]


def rmsprop(rng: Rng, dtype: Any) -> list[Any]:
    n = length(rng)
    p, g, s, v, mean = (numbers(rng, n, dtype) for _ in range(5))
    velocity, center = one_of(rng, None, v), one_of(rng, None, mean)
    numbers_of = (0.01, 0.9, 0.1, 1e-8, one_of(rng, 0.0, 0.1), 0.9, factor(rng, dtype))
    return [p, g, abs(s), velocity, center, values(rng, p), *numbers_of]


def squares(rng: Rng, dtype: Any) -> list[Any]:
    n = int(rng.integers(4097, 30_000))
    sums = np.zeros(-(-n // steps.BLOCK_OF_SQUARES), dtype)
    return [rng.standard_normal(n).astype(dtype), one_of(rng, 1.0, 0.3), sums]


def decide(rng: Rng, dtype: Any) -> list[Any]:
    loss, squares = one_of(rng, 1.5, 0.0, np.inf, np.nan), one_of(rng, 0.0, 0.3, 7.0, np.inf)
    given = (one_of(rng, 1.0, 0.25), one_of(rng, np.inf, 1.0))
    return [np.array(loss, dtype), np.array(squares), *given, np.zeros(2, "f"), np.zeros(2)]


def pool(rng: Rng, dtype: Any) -> list[Any]:
    n, h, w, C = S = windows(rng)
    z = by_window(numbers(rng, (n, 2 * h, 2 * w, C), dtype))
    return [z, np.zeros(S, dtype), np.zeros(S, "uint8")]


def unpool(rng: Rng, dtype: Any) -> list[Any]:
    n, h, w, C = S = windows(rng)
    largest = rng.integers(0, 4, S, "uint8")
    return [numbers(rng, S, dtype), largest, by_window(np.zeros((n, 2 * h, 2 * w, C), dtype))]


def bias_relu(rng: Rng, dtype: Any) -> list[Any]:
    n, h, w, C = windows(rng)
    bias, zero = numbers(rng, w * C, dtype), np.zeros(w * C, dtype)
    lines = numbers(rng, (n * h, w * C), dtype)
    return [lines, *one_of(rng, (bias, zero), (bias, None), (None, zero))]


def relu_gradient(rng: Rng, dtype: Any) -> list[Any]:
    S = windows(rng)
    return [numbers(rng, S, dtype), numbers(rng, S, dtype), np.zeros(S, dtype)]


def sum_parts(rng: Rng, dtype: Any) -> list[Any]:
    n = length(rng)
    parts = [numbers(rng, n, dtype) for _ in range(rng.integers(2, 9))]
    return [np.zeros(n, dtype), *parts]


def meet(rng: Rng, dtype: Any) -> list[Any]:
    """All others have come, or one of them comes for the first time only, or to another call."""
    count, ranks, mark = int(rng.integers(2, 100)), int(rng.integers(2, 9)), 1 << 30
    marks = [mark, mark + 1][:: 1 - 2 * (count % 2)]  # the other one is that of the next barrier
    others = [np.array([count + rng.integers(2), *marks]) for _ in range(ranks - 1)]
    if rng.random() < 0.3:
        others[-1][0] = 1
    elif rng.random() < 0.3:
        others[-1][1 + count % 2] = 0
    own, here = np.array([count - 1, 0, 0]), np.array([7])
    return [own, here, count, mark, 300, int, tuple(others)]


OF_ADD_ONS = [
    import_module(f"helpers.kernels.{path.stem}")
    for path in sorted((Path(__file__).parents[1] / "helpers" / "kernels").glob("of_*.py"))
]
"""Arguments of kernels of add-ons, those that are here; what they import fills the table."""

CASES: dict[str, tuple[Draw, float, bool]] = {
    "scale_loop": (scaled, 0, True),
    "adam_loop": (adam, 0, True),
    "sgd_loop": (sgd, 0, True),
    "rmsprop_loop": (rmsprop, 0, True),
    "squares_loop": (squares, 1e-6, True),
    "decide_loop": (decide, 0, True),
    "sum_loop": (sum_parts, 0, True),
    "meet_loop": (meet, 0, True),
    "pool_loop": (pool, 0, False),
    "unpool_loop": (unpool, 0, False),
    "bias_relu_loop": (bias_relu, 0, False),
    "relu_gradient_loop": (relu_gradient, 0, False),
    "relu_loop": (lambda rng, dtype: relu_gradient(rng, dtype)[1:], 0, False),
    **halves.CASES,
    **products.CASES,
    **cases.CASES,
    **{name: case for module in OF_ADD_ONS for name, case in module.CASES.items()},
}
"""Arguments of a kernel, how far it may be from NumPy, and whether it takes float64."""


def copies(args: list[Any]) -> list[Any]:
    """Copies in the same memory layout."""

    def copy(a: Any) -> Any:
        if isinstance(a, tuple):
            return tuple(copies([*a]))
        if not isinstance(a, np.ndarray):
            return a
        found = np.empty_like(a)
        if not isinstance(a.base, np.ndarray | None):  # windows that overlap, by as_strided
            return np.lib.stride_tricks.as_strided(a.base.base.copy(), a.shape, a.strides)
        if a.ndim == 6 and not a.flags.c_contiguous:  # windows
            n, h, w, C = a.shape[2:]
            found = by_window(np.empty((n, 2 * h, 2 * w, C), a.dtype))
        elif not a.flags.c_contiguous:
            return a.copy("K")
        found[...] = a
        return found

    return list(map(copy, args))


def arrays_of(args: Any) -> list[np.ndarray]:
    """The arrays among arguments, and in tuples of them."""
    found = []
    for a in args:
        found += [a] if isinstance(a, np.ndarray) else arrays_of(a) if isinstance(a, tuple) else []
    return found


def bits(args: list[Any]) -> list[bytes]:
    """All but the sign of NaN, which depends on the order of operands."""
    return [np.where(a == a, a, np.nan).astype(a.dtype).tobytes() for a in arrays_of(args)]


def test_every_kernel_has_a_case() -> None:
    assert CASES.keys() == KERNELS.keys()


OF_ARENAS = {
    *("arena", "blocks", "retag", "tag", "trim", "use"),
    *("start_write", "end_write", "start_read", "end_read"),
}
"""Functions of `nnmpi/arrays/native/arena.c`, which are no kernels."""
OF_SHARED_MEMORY = {"marked_sum"}
"""What `nnmpi/arrays/native/shared.c` makes calls of."""


@pytest.mark.all_add_ons
@pytest.mark.skipif(not MODULES, reason="the kernels were not compiled")
def test_every_kernel_is_compiled() -> None:
    for kind, module in MODULES.items():
        missing = ONLY_IN_CUDA | (FUSED if kind == "baseline" else set())
        found = {name for name in vars(module) if not name.startswith("_")}
        assert found - OF_ARENAS - OF_SHARED_MEMORY == KERNELS.keys() - missing


COMPILED = [
    pytest.param(name, module, id=f"{kind}-{name}")
    for kind, module in MODULES.items()
    for name in CASES
    if hasattr(module, name)
]


@pytest.mark.parametrize(("name", "module"), COMPILED)
def test_it_computes_what_numpy_does(name: str, module: ModuleType, seeds: Seeds) -> None:
    draw, close, takes_float64 = CASES[name]
    for seed in seeds(DRAWS):
        rng = np.random.default_rng(seed)
        mine = draw(rng, one_of(rng, "float32", "float64") if takes_float64 else "float32")
        numpys = copies(mine)
        with np.errstate(all="ignore"):
            KERNELS[name].reference(*numpys)
        assert getattr(module, name)(*mine) is None, seed
        if not close:
            assert bits(mine) == bits(numpys), seed
        for a, b in zip(arrays_of(mine), arrays_of(numpys), strict=True):
            if close:
                largest = np.max(abs(b), where=np.isfinite(b), initial=0)
                np.testing.assert_allclose(a, b, rtol=0, atol=close * largest)


@pytest.mark.parametrize("K", [4, 20, 64, 100, 1000, 1030, 2053, 3136])
@pytest.mark.parametrize(
    "module", [pytest.param(m, id=kind) for kind, m in MODULES.items() if kind != "baseline"]
)
def test_a_linear_layers_outputs_do_not_depend_on_the_number_of_rows(
    module: ModuleType, K: int
) -> None:
    rng = np.random.default_rng(K)
    for n, O in [(n, O) for n in (2, 3, 4, 5, 6, 7, 8, 9) for O in (5, 16, 17, 31, 40, 128)]:
        draw = [rng.standard_normal(shape, "float32") for shape in ((n + 30, K), (O, K), O)]
        y, few = np.empty((n + 30, O), "float32"), np.empty((n, O), "float32")
        x, w, b = draw
        assert module.linear_outputs(x, w, b, y, False, True) is None
        assert module.linear_outputs(x[:n], w, b, few, False, True) is None
        assert few.tobytes() == y[:n].tobytes(), (n, O)


def least_with(name: str) -> ModuleType:
    """The module of the fewest instructions that has a kernel."""
    return next(module for module in reversed(MODULES.values()) if hasattr(module, name))


OF_MORE = [case for case in COMPILED if case.values[1] is not least_with(str(case.values[0]))]


@pytest.mark.parametrize(("name", "module"), OF_MORE)
def test_sets_of_instructions_agree_to_the_bit(name: str, module: ModuleType, seeds: Seeds) -> None:
    for seed in seeds(DRAWS // 3):
        one = CASES[name][0](np.random.default_rng(seed), "float32")
        other = copies(one)
        getattr(module, name)(*one)
        getattr(least_with(name), name)(*other)
        assert bits(one) == bits(other), seed


TAKE_NO_HALVES = {"meet_loop", "mlp_outputs", "mlp_gradients"}
"""Others write its arrays meanwhile; they call kernels that take 16 bits."""
TAKE_SOME_HALVES = {"attention_loop", "attention_gradient_loop", "round_loop"}
"""Not as statistics or sums; tests/kernels/test_attention_halves.py has what they compute."""
SUMS_OF_PAIRS = {
    *("linear_outputs", "linear_gradients", "products_loop"),
    *("attention_loop", "attention_gradient_loop"),
}
"""They add products of 16 bits in an order of their own."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("name", "module"), COMPILED)
def test_it_widens_16_bits_and_rounds_once(
    name: str, module: ModuleType, dtype: str, seeds: Seeds
) -> None:
    """Of some of its arrays, or of all."""
    of_steps = {"adam_loop": 5, "sgd_loop": 3, "rmsprop_loop": 5}.get(name)  # where values are
    for seed in seeds(DRAWS):
        rng = np.random.default_rng(seed)
        wide = CASES[name][0](rng, "float32")
        share = 0.5 if rng.random() < 0.5 and name not in SUMS_OF_PAIRS else 1.0
        with np.errstate(all="ignore"):
            mine = halves.narrowed(wide, dtype, rng, share)
        wide = halves.widened(mine)
        is_narrow = False
        if of_steps and mine[of_steps] is not None:
            wide[of_steps], is_narrow = mine[of_steps].copy(), is_half(mine[0].dtype)
        is_narrow |= name == "merge_loop" and is_half(mine[0].dtype)
        is_narrow |= name == "squares_loop" and is_half(mine[2].dtype)
        before, result = bits(mine), getattr(module, name)(*mine)
        if not halves.found(mine):
            continue
        if name in TAKE_SOME_HALVES and result is NotImplemented:
            assert bits(mine) == before, seed
            continue
        if name in TAKE_NO_HALVES or is_narrow:  # masters and sums have float32
            assert result is NotImplemented, seed
            assert bits(mine) == before, seed
            continue
        assert result is None, seed
        if name == "merge_loop":  # it has to know both types
            KERNELS[name].reference(wide[0], mine[1])
        elif name == "round_loop":  # of float32 NumPy copies
            KERNELS[name].reference(*wide)
        else:
            assert getattr(module, name)(*wide) is None, seed
        for a, b in zip(arrays_of(mine), arrays_of(wide), strict=True):
            with np.errstate(all="ignore"):
                rounded = b.astype(a.dtype)
            if name not in SUMS_OF_PAIRS:
                assert bits([a]) == bits([rounded]), seed
                continue
            largest = np.max(abs(b), where=np.isfinite(b), initial=1e-30)
            near = halves.UNIT[dtype] + 1e-5 if is_half(a.dtype) else 1e-5
            np.testing.assert_allclose(a.astype("f8"), b, rtol=0, atol=near * largest)


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_256_ranks_of_a_node_meet(module: ModuleType) -> None:
    own, *others = np.ones((256, 3), np.int64)
    here, array, parts = np.zeros(1, np.int64), np.ones(3, np.float32), np.ones((256, 3), "float32")
    assert module.meet_loop(own, here, 1, 1, 1, int, tuple(others)) is None
    assert here[0] == 1
    turn = np.zeros(3, np.int64)
    add_up = module.marked_sum(1, 0, 1, (own, turn, *others), tuple(parts), tuple(parts))
    for other in others:
        other[0] = 2
    assert add_up(array)
    assert array.tolist() == [256] * 3
    others[7][:] = 3, 1, 0  # it makes another call
    assert not add_up(array)
