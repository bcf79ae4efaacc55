"""Where a model is cut: units, the best cut beside all cuts, and cuts by hand."""

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.traced import traced

import nnmpi
from nnmpi import nn
from nnmpi.nn.graph import Graph
from nnmpi.nn.models import MODELS
from nnmpi.parallel.arrangement.division import divide
from nnmpi.parallel.arrangement.partition import (
    NOISE,
    CutCosts,
    SplitPoints,
    as_text,
    bounds,
    parse_cut,
    split_points,
    units,
)


class Scaled(nn.Sequential):
    """A Sequential with a forward of its own."""

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        return super().forward(x) * 2


def known(name: str) -> Graph:
    shapes = {"mnist-cnn": (1, 28, 28), "digits-cnn": (1, 8, 8), "iris-mlp": (4,)}
    return traced(MODELS[name](), *shapes[name])


def nested() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1)),
        nn.Sequential(nn.ReLU(), nn.Sequential(nn.MaxPool2d(2), nn.Flatten()), nn.Sequential()),
        Scaled(nn.Linear(32, 4), nn.ReLU()),
        nn.Linear(4, 4),
        nn.ReLU(),
    )


# ---- units


def test_a_model_that_is_one_layer_is_refused() -> None:
    with refused("1 layer with trained parameters and 2 stages"):
        parse_cut("1", traced(nn.Linear(2, 2), 2), 2)
    with refused("0 layers with trained parameters and 2 stages"):
        parse_cut("1", traced(nn.Sequential(), 2), 2)


def test_a_division_knows_shared_weights_and_refuses_shared_buffers() -> None:
    norm, shared = nn.BatchNorm1d(3), nn.Linear(3, 3)
    model = nn.Sequential(shared, norm, nn.Tanh(), shared, norm, nn.Linear(3, 3))
    graph = traced(model, 3)
    found = units(graph)
    weights = [v.path for v in graph.variables if v.path.startswith("0.")]
    with refused("1 (BatchNorm1d) is used in stages 0 and 1", "a --cut that"):
        divide(graph, found, (3,), (0, 1))
    assert divide(graph, found, (5,), (0, 1)).tied(graph) == {}
    plain = traced(nn.Sequential(shared, nn.Tanh(), shared), 3)
    assert divide(plain, units(plain), (1,), (0, 1)).tied(plain) == dict.fromkeys(weights, (0, 1))
    assert divide(plain, units(plain), (1,), (0, 0)).tied(plain) == {}


# ---- the best cut


def every_cut(has_trained: list[bool], stages: int) -> list[tuple[int, ...]]:
    n = len(has_trained)
    cuts = combinations(range(1, n), stages - 1)
    return [c for c in cuts if all(any(has_trained[a:b]) for a, b in bounds(c, n))]


COSTS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "real": lambda rng, n: rng.random(n),
    "few values": lambda rng, n: rng.integers(0, 3, n).astype(float),
    "zeros": lambda rng, n: np.zeros(n),
    "one is large": lambda rng, n: np.where(np.arange(n) == n // 2, 100.0, rng.random(n)),
}


def costs_of(
    seconds: Sequence[float],
    trained: Sequence[bool] | None = None,
    fixed: Sequence[float] | None = None,
    border: Sequence[float] | None = None,
) -> CutCosts:
    """Units that keep as much of each micro-batch as they hold in between."""
    none, held = [0.0] * len(seconds), fixed if fixed is not None else [1.0] * len(seconds)
    return CutCosts(seconds, trained or [True] * len(seconds), held, held, border or none)


@pytest.mark.parametrize("draw", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_a_cut_is_as_good_as_the_best_of_all(
    stages: int, draw: Callable[[np.random.Generator, int], np.ndarray]
) -> None:
    """By time; of those near the best by the longest message, then by memory, then by time."""
    rng = np.random.default_rng(stages)
    live = [stages - s for s in range(stages)]
    for n in range(stages, 10):
        seconds, memory = draw(rng, n), draw(rng, n)
        border = (0.1 * rng.integers(1, 3, n)).tolist()
        has_trained = (rng.random(n) < 0.6).tolist()
        cuts = every_cut(has_trained, stages)
        if not cuts:
            continue

        def time(cut: SplitPoints, seconds: Any = seconds, border: Any = border) -> float:
            stops = [0.0, *(border[k] for k in cut), 0.0]
            own = (sum(seconds[a:b]) for a, b in bounds(cut, len(seconds)))
            return max(t + a + b for t, (a, b) in zip(own, pairwise(stops), strict=True))

        def held(cut: SplitPoints, memory: Any = memory) -> float:
            parts = (sum(memory[a:b]) for a, b in bounds(cut, len(memory)))
            return max(part * (1 + m) for part, m in zip(parts, live, strict=True))

        def longest(cut: SplitPoints, border: Any = border) -> float:
            return max((border[k] for k in cut), default=0.0)

        near = [c for c in cuts if time(c) <= (1 + NOISE) * min(map(time, cuts)) + 1e-12]
        near = [c for c in near if longest(c) == min(map(longest, near))]
        chosen = split_points(costs_of(seconds, has_trained, memory, border), stages, live)
        assert chosen in near
        assert held(chosen) == pytest.approx(min(map(held, near)))


def test_memory_decides_between_cuts_of_about_the_same_time() -> None:
    seconds = [1.0, 1.0, 0.01, 1.0, 1.0]
    assert split_points(costs_of(seconds), 2) == (2,)
    assert split_points(costs_of(seconds, fixed=[1.0, 1.0, 9.0, 0.0, 0.0]), 2) == (2,)
    assert split_points(costs_of(seconds, fixed=[5.0, 5.0, 9.0, 6.0, 6.0]), 2) == (3,)
    slower = [1.0, 1.0, 0.1, 1.0, 0.9]
    assert split_points(costs_of(slower, fixed=[0.0, 0.0, 9.0, 0.0, 9.0]), 2) == (2,)


def test_the_first_stage_has_most_micro_batches_at_once() -> None:
    costs = costs_of([1.0, 0.01, 1.0])
    assert split_points(costs, 2, [1, 2]) == (2,)
    assert split_points(costs, 2, [2, 1]) == (1,)


def test_too_few_trained_layers_are_refused() -> None:
    model = MODELS["iris-mlp"]()
    graph = traced(model, 4)
    has_trained = [unit.is_trained for unit in units(graph)]
    with refused("2 layers with trained parameters and 3 stages", "--pp or --virtual-stages"):
        split_points(costs_of([1.0] * len(has_trained), has_trained), 3)
    with refused("2 layers with trained parameters and 3 stages"):
        parse_cut("1,2", graph, 3)
    for p in model[0].parameters():
        p.requires_grad = False
    with refused("1 layer with trained parameters and 2 stages"):
        parse_cut("1", traced(model, 4), 2)
    with refused("0 layers with trained parameters and 2 stages"):
        split_points(costs_of([]), 2)


# ---- by hand


def test_a_cut_by_hand_counts_layers() -> None:
    graph = known("mnist-cnn")
    assert parse_cut("3,7", graph, 3) == (3, 7)
    assert parse_cut(" 6, 9 ,11", graph, 4) == (6, 9, 11)
    assert parse_cut("", graph, 1) == ()
    found = units(graph)
    for chosen in combinations((1, 3, 4, 5), 2):
        assert parse_cut(as_text(chosen, found), graph, 3) == tuple(found[k].first for k in chosen)
    assert parse_cut("4,5", traced(nested(), 1, 8, 8), 3) == (4, 5)


REFUSED: dict[str, tuple[int, tuple[str, ...]]] = {
    "": (2, ("0 numbers for 2 stages; give 1",)),
    "3,7": (2, ("2 numbers for 2 stages; give 1",)),
    "3": (1, ("1 number, and one stage has no cut: leave it out",)),
    "3,x": (3, ("--cut 3,x", "as in 3,7")),
    "3;7": (3, ("--cut 3;7", "as in 3,7")),
    "-3": (2, ("--cut -3", "as in 3,7")),
    "9" * 5000: (2, ("as in 3,7",)),
    "7,3": (3, ("3 does not follow 7",)),
    "3,3": (3, ("3 does not follow 3",)),
    "0": (2, ("0 does not follow 0", "from 1 on")),
    "12": (2, ("there is no layer 12", "the model has 12")),
    "6,7": (3, ("stage 1 from layer 6 up to 6 (Flatten) has no trained parameter",)),
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:9])
def test_a_cut_by_hand_that_is_impossible_is_refused(text: str) -> None:
    stages, words = REFUSED[text]
    with refused(*words):
        parse_cut(text, known("mnist-cnn"), stages)
