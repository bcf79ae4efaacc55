"""Where a model is cut: units, the best cut beside all cuts, and cuts by hand."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from datafiles import refused

import nnmpi
from nnmpi import nn
from nnmpi.nn.models import MODELS
from nnmpi.parallel.arrangement.partition import NOISE, as_text, bounds, cut, parse_cut, units


class Scaled(nn.Sequential):
    """A Sequential with a forward of its own."""

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        return super().forward(x) * 2


def names(model: nn.Module) -> list[str]:
    return [f"{unit.first} {unit.name} {unit}" for unit in units(model)]


def nested() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1)),
        nn.Sequential(nn.ReLU(), nn.Sequential(nn.MaxPool2d(2), nn.Flatten()), nn.Sequential()),
        Scaled(nn.Linear(32, 4), nn.ReLU()),
        nn.Linear(4, 4),
        nn.ReLU(),
    )


# ---- units


def test_layers_that_run_as_one_op_are_one_unit() -> None:
    assert names(MODELS["mnist-cnn"]()) == [
        "0 0 Conv2d + ReLU + MaxPool2d",
        "3 3 Conv2d + ReLU + MaxPool2d",
        "6 6 Flatten",
        "7 7 Linear + ReLU",
        "9 9 Linear + ReLU",
        "11 11 Linear",
    ]
    assert [len(unit.modules) for unit in units(MODELS["digits-cnn"]())] == [1] * 11


def test_nested_sequentials_are_flattened_unless_they_have_a_forward_of_their_own() -> None:
    model = nested()
    assert names(model) == [
        "0 0.0 Conv2d + ReLU + MaxPool2d",
        "3 1.1.1 Flatten",
        "4 2 Scaled",
        "5 3 Linear + ReLU",
    ]
    x = nnmpi.tensor(np.random.default_rng(0).standard_normal((3, 1, 8, 8)))
    model.to("float64")
    y = x
    for unit in units(model):
        y = nn.Sequential(*unit.modules)(y)
    np.testing.assert_allclose(y.numpy(), model(x).numpy(), rtol=1e-12, atol=1e-12)
    assert [unit.modules[0].path for unit in units(model)] == ["0.0", "1.1.1", "2", "3"]


def test_a_layer_that_is_used_twice_has_two_paths() -> None:
    linear = nn.Linear(3, 3)
    model = nn.Sequential(linear, nn.Tanh(), nn.Sequential(linear))
    assert [unit.paths for unit in units(model)] == [("0",), ("1",), ("2.0",)]
    assert [unit.is_trained for unit in units(model)] == [True, False, True]


@pytest.mark.parametrize("model", [nn.Linear(2, 2), Scaled(nn.Linear(2, 2)), nn.ModuleList()])
def test_a_model_that_is_no_sequential_is_refused(model: nn.Module) -> None:
    with refused(f"is a {type(model).__name__}", "nn.Sequential of blocks", "any Module"):
        units(model)


def test_a_parameter_of_a_sequential_itself_is_refused() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    model[0].scale = nn.Parameter(np.ones(3))
    with refused("0.scale belongs to no layer", "move it"):
        units(model)


# ---- the best cut


def every_cut(has_trained: list[bool], stages: int) -> list[tuple[int, ...]]:
    n = len(has_trained)
    cuts = combinations(range(1, n), stages - 1)
    return [c for c in cuts if all(any(has_trained[a:b]) for a, b in bounds(c, n))]


def largest(values: np.ndarray, chosen: tuple[int, ...]) -> float:
    return max(values[a:b].sum() for a, b in bounds(chosen, len(values)))


COSTS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "real": lambda rng, n: rng.random(n),
    "few values": lambda rng, n: rng.integers(0, 3, n).astype(float),
    "zeros": lambda rng, n: np.zeros(n),
    "one is large": lambda rng, n: np.where(np.arange(n) == n // 2, 100.0, rng.random(n)),
}


@pytest.mark.parametrize("draw", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_a_cut_is_as_good_as_the_best_of_all(
    stages: int, draw: Callable[[np.random.Generator, int], np.ndarray]
) -> None:
    rng = np.random.default_rng(stages)
    for n in range(stages, 10):
        costs, memory = draw(rng, n), draw(rng, n)
        has_trained = (rng.random(n) < 0.6).tolist()
        cuts = every_cut(has_trained, stages)
        if not cuts:
            continue
        best = min(largest(costs, c) for c in cuts)
        chosen = cut(costs, stages, has_trained)
        assert chosen in cuts
        assert largest(costs, chosen) == pytest.approx(best)

        near = [c for c in cuts if largest(costs, c) <= (1 + NOISE) * best + 1e-12]
        chosen = cut(costs, stages, has_trained, memory)
        assert chosen in near
        least = min(largest(memory, c) for c in near)
        assert largest(memory, chosen) == pytest.approx(least)


def test_memory_decides_between_cuts_of_about_the_same_time() -> None:
    costs, memory = [1.0, 1.0, 0.01, 1.0, 1.0], [1.0, 1.0, 9.0, 0.0, 0.0]
    assert cut(costs, 2, [True] * 5) == (2,)
    assert cut(costs, 2, [True] * 5, memory) == (2,)
    assert cut(costs, 2, [True] * 5, [5.0, 5.0, 9.0, 6.0, 6.0]) == (3,)
    slower = [1.0, 1.0, 0.1, 1.0, 0.9]
    assert cut(slower, 2, [True] * 5, [0.0, 0.0, 9.0, 0.0, 9.0]) == (2,)


def test_of_cuts_with_equal_memory_the_fastest_is_taken() -> None:
    has_trained, memory = [True, False, True], [1.0, 0.0, 1.0]
    assert cut([0.99, 0.01, 1.0], 2, has_trained, memory) == (2,)
    assert cut([1.0, 0.01, 0.99], 2, has_trained, memory) == (1,)


def test_too_few_trained_layers_are_refused() -> None:
    model = MODELS["iris-mlp"]()
    has_trained = [unit.is_trained for unit in units(model)]
    with refused("2 layers with trained parameters and 3 stages", "--pp or --virtual-stages"):
        cut([1.0] * len(has_trained), 3, has_trained)
    with refused("2 layers with trained parameters and 3 stages"):
        parse_cut("1,2", units(model), 3)
    for p in model[0].parameters():
        p.requires_grad = False
    with refused("1 layer with trained parameters and 2 stages"):
        parse_cut("1", units(model), 2)
    with refused("0 layers with trained parameters and 2 stages"):
        cut([], 2, [])


# ---- by hand


def test_a_cut_by_hand_counts_layers() -> None:
    found = units(MODELS["mnist-cnn"]())
    assert parse_cut("3,7", found, 3) == (1, 3)
    assert parse_cut(" 6, 9 ,11", found, 4) == (2, 4, 5)
    assert parse_cut("", found, 1) == ()
    for chosen in combinations((1, 3, 4, 5), 2):
        assert parse_cut(as_text(chosen, found), found, 3) == chosen
    assert parse_cut("4,5", units(nested()), 3) == (2, 3)


REFUSED: dict[str, tuple[int, tuple[str, ...]]] = {
    "": (2, ("0 numbers for 2 stages; give 1",)),
    "3,7": (2, ("2 numbers for 2 stages; give 1",)),
    "3": (1, ("1 number for 1 stage; give 0",)),
    "3,x": (3, ("--cut 3,x", "as in 3,7")),
    "3;7": (3, ("--cut 3;7", "as in 3,7")),
    "-3": (2, ("--cut -3", "as in 3,7")),
    "9" * 5000: (2, ("as in 3,7",)),
    "7,3": (3, ("3 does not follow 7",)),
    "3,3": (3, ("3 does not follow 3",)),
    "0": (2, ("0 does not follow 0", "from 1 on")),
    "12": (2, ("there is no layer 12", "the model has 12")),
    "1": (2, ("layer 1 is inside Conv2d + ReLU + MaxPool2d (layers 0 to 2)", "cut at 3 instead")),
    "5": (2, ("layer 5 is inside Conv2d + ReLU + MaxPool2d (layers 3 to 5)", "3 or 6")),
    "10": (2, ("layer 10 is inside Linear + ReLU (layers 9 to 10)", "9 or 11")),
    "6,7": (3, ("stage 1 from layer 6 up to 6 (Flatten) has no trained parameter",)),
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:9])
def test_a_cut_by_hand_that_is_impossible_is_refused(text: str) -> None:
    stages, words = REFUSED[text]
    with refused(*words):
        parse_cut(text, units(MODELS["mnist-cnn"]()), stages)


def test_bounds_are_the_units_of_each_stage() -> None:
    assert bounds((2, 5), 7) == [(0, 2), (2, 5), (5, 7)]
    assert bounds((), 7) == [(0, 7)]
