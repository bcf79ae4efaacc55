"""The arrangement of the rows of the table of conformance, beside what the built runs do."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
from helpers.training.branch_models import BRANCH_MODELS
from helpers.training.conformance import Row, arranged_rows
from helpers.training.graph_models import GRAPH_MODELS
from helpers.training.laws_arrangement import (
    Options,
    communicators,
    cuts,
    holds_and_sends_what_is_said,
    keeps_what_is_said,
    only_sends_what_is_said,
)
from helpers.training.laws_language import MODELS, POSITIONS, many_tokens
from helpers.training.transformer_models import Decoder

from nnmpi import nn
from nnmpi.comm import thread_ranks as threads
from nnmpi.nn.graph import Graph
from nnmpi.parallel import stage_cut
from nnmpi.parallel.arrangement.division import work
from nnmpi.parallel.arrangement.partition import Unit
from nnmpi.parallel.unit_costs import UnitCost


def by_work(model: nn.Module, graph: Graph, units: Sequence[Unit], *_: Any, **__: Any) -> Any:
    """Costs that no clock measures, so that cuts are the same in each run."""
    works = (sum(work(graph, graph.nodes[k]) for k in unit.nodes) for unit in units)
    return [UnitCost(n, 0, 0, 0, 0, 0) for n in works]


@pytest.fixture(autouse=True)
def _cuts_by_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_cut, "profile", by_work)


ROWS = [
    pytest.param(row, marks=() if is_of_sample else pytest.mark.long, id=row.name)
    for row, is_of_sample in arranged_rows()
]


@pytest.mark.parametrize("row", ROWS)
def test_a_run_holds_and_sends_what_is_said(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    with communicators(monkeypatch) as made:
        threads.run(row.ranks, holds_and_sends_what_is_said, made, row.options)


def plain_cnn() -> nn.Module:
    blocks = (
        nn.Conv2d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3),
        nn.ReLU(),
    )
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32, 20), nn.ReLU(), nn.Linear(20, 10))


def wide_cnn() -> nn.Module:
    """Its second convolution is Winograd's, of whole channels only."""
    convolutions = nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 16, 3, padding=1)
    return nn.Sequential(*convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10))


WIDE = {"build": partial(Decoder, 17, 6, 2, 5, 80), "given": many_tokens, "sequence_parallel": True}
OF_TOKENS = {"given": many_tokens, "pp": 2, "micro_batches": 3}
EVERYWHERE = {**OF_TOKENS, "build": partial(MODELS["everywhere"], POSITIONS)}
LONG = partial(Decoder, 17, 6, 1, 5, 320)
# rows of the table are in float64: they would pass if each number were said to take 8 bytes
IN_32_BITS = {"dtype": "float32", "allreduce": "ring", "bucket_mb": 0.005}
OTHERS = {
    "sums in 32 bits": (2, IN_32_BITS),
    "sums of zero 3 in 32 bits": (4, {**IN_32_BITS, "zero": 3, "pp": 2, "micro_batches": 3}),
    "long sums of terms": (4, {**WIDE, "dp": 2, "tp": 2}),
    "long sums of terms by shards": (4, {**WIDE, "dp": 2, "tp": 2, "zero": 1, "bucket_mb": 0.05}),
    "terms in 16 bits": (4, {**WIDE, "dp": 2, "tp": 2, "zero": 1, "dtype": "float16"}),
    "long terms in 32 bits": (
        4,
        {**WIDE, "build": LONG, "dp": 2, "tp": 2, "zero": 2, "dtype": "float16"},
    ),
    "terms in 32 bits": (4, {**WIDE, "dp": 2, "tp": 2, "zero": 2, "dtype": "float16"}),
    "reproducible": (3, {"reproducible": True, "slices": 5}),
    "a stage that passes on what it got": (
        3,
        {"build": GRAPH_MODELS["residual cnn"], "pp": 3, "micro_batches": 3, "cut": "3,4"},
    ),
    "a stage that takes a tensor and a view of it": (
        2,
        {"build": BRANCH_MODELS["summed"], "pp": 2, "micro_batches": 3, "cut": "4"},
    ),
    "a stage that begins with experts": (
        4,
        {**EVERYWHERE, "tp": 2, "sequence_parallel": True, "cut": "8"},
    ),
    "a stage that is an embedding": (
        6,
        {**EVERYWHERE, "tp": 3, "sequence_parallel": True, "cut": "1"},
    ),
    "whole matrices": (4, {"allreduce": "shared", "optimizer": "muon"}),
    "convolutions by samples, which run with what follows": (
        2,
        {"build": plain_cnn, "tp": 2, "layout": "0=samples,3=samples", "micro_batches": 2},
    ),
    "convolutions by samples, the last one gathered": (
        2,
        {"build": plain_cnn, "tp": 2, "layout": "0=samples,3=samples,6=samples"},
    ),
    "reproducible cnn": (4, {"reproducible": True, "model": "digits-cnn"}),
}


@pytest.mark.parametrize(("ranks", "options"), OTHERS.values(), ids=OTHERS)
def test_a_run_of_another_strategy_does_too(
    ranks: int, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    with communicators(monkeypatch) as made:
        threads.run(ranks, holds_and_sends_what_is_said, made, options)


@pytest.mark.parametrize(
    "options",
    [{}, {"optimizer": "adam", "dtype": "float16"}, {"optimizer": "rmsprop", "momentum": 0.9}],
    ids=["SGD", "Adam", "RMSprop"],
)
def test_a_node_holds_what_is_said_for_the_loss_of_a_rank(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {**options, "allreduce": "shared"}
    with communicators(monkeypatch) as made:
        threads.run(3, holds_and_sends_what_is_said, made, shared, fault_tolerant=True)


OF_DIGITS = {
    name: {"pp": 2, "micro_batches": 3, "build": build}
    for name, build in (GRAPH_MODELS | BRANCH_MODELS).items()
}
CUT = OF_DIGITS | {
    name: {**OF_TOKENS, "build": partial(MODELS[name], POSITIONS)}
    for name in ("decoder", "gpt", "mixture", "routed", "everywhere")
}
LAYOUTS = {"pp=2": {}, "tp=2": {"tp": 2}, "in parts": {"tp": 2, "sequence_parallel": True}}


@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "name"),
    [at for at in product(LAYOUTS, CUT) if at[0] != "in parts" or at[1] not in OF_DIGITS],
)
def test_stages_keep_what_is_said_for_any_cut(layout: str, name: str) -> None:
    options = CUT[name] | LAYOUTS[layout]
    for cut in cuts(options):
        ranks = 2 * options.get("tp", 1)
        threads.run(ranks, keeps_what_is_said, {**options, "cut": cut})


@pytest.mark.parametrize("layout", [{"pp": 2, "micro_batches": 3}, {"tp": 2}], ids=["pp", "tp"])
@pytest.mark.parametrize("build", [plain_cnn, GRAPH_MODELS["residual cnn"], wide_cnn])
def test_convolutions_in_16_bits_keep_what_is_said(
    build: Callable[[], nn.Module], layout: Options
) -> None:
    threads.run(2, keeps_what_is_said, {"build": build, "dtype": "float16", **layout})


@pytest.mark.parametrize("more", [{"pp": 2}, {"pp": 3}, {"pp": 3, "vertical_sync": True}])
def test_stages_of_pipedream_send_what_is_said(
    more: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"schedule": "pipedream", "batch_size": 12, **more}
    with communicators(monkeypatch) as made:
        threads.run(more["pp"], only_sends_what_is_said, made, options)
