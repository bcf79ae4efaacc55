"""A search that prunes finds what an exhaustive one finds, and its bounds are bounds."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from helpers.decoders import decoder
from helpers.planning import SLOW_LINKS, measured, planning

from nnmpi.addons.planning.bound import LowerBounds
from nnmpi.addons.planning.candidate import Candidate, candidates, recomputed, shapes
from nnmpi.addons.planning.exchange_time import IN_PLACE, THROUGH_MEMORY, curve_name
from nnmpi.addons.planning.fastest_sum import ALL_REDUCES
from nnmpi.addons.planning.layer_ways import LayerWays, as_layout, has_positions
from nnmpi.addons.planning.machine import TYPICAL, Curve, MeasuredModel, UnitTimes
from nnmpi.addons.planning.options import PLANNED
from nnmpi.addons.planning.paper.activations import activations
from nnmpi.addons.planning.search import SearchResult
from nnmpi.addons.planning.step_time import step_time
from nnmpi.collectives.algorithms import ALGORITHMS, Collective
from nnmpi.collectives.price import Link
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.schedules.op import Kind

IMAGES = "synthetic:1x28x28:10:12800"
MODELS = {
    "cnn": Config(model="mnist-cnn", data=IMAGES),
    "wide mlp": Config(model="mlp:784-512-512-10", data=IMAGES, batch_size=24, optimizer="adam"),
    "halves": Config(model="mlp:784-100-30-10", data=IMAGES, batch_size=10, dtype="float16"),
    "tp is far": Config(model="mlp:784-256-256-10", data=IMAGES, batch_size=32, order="dp,tp,pp"),
    "replicas": Config(model="mlp:784-100-30-10", data=IMAGES, batch_size=32, sync="local"),
    "codes": Config(model="mlp:784-99-10", data=IMAGES, batch_size=32, compress="powersgd:2"),
    "gossip": Config(model="mlp:784-99-10", data=IMAGES, batch_size=12, sync="gossip", every=2),
    "decoder": decoder("2x2x16", 16, batch_size=8),
    "large images": Config(
        model="helpers.planning:large_stem", data="synthetic:1x128x128:10:64", batch_size=3
    ),
}
CURVES = TYPICAL._replace(
    sums={curve_name(Collective.ALL_REDUCE, IN_PLACE, p): Curve(((1.0, 1e-3),)) for p in (2, 4)}
)
CASES = {
    "cnn with measured sums": ("cnn", 4, 1, CURVES),
    "cnn on three nodes": ("cnn", 6, 3, TYPICAL),
    "slow links": ("wide mlp", 4, 2, SLOW_LINKS),
    "a rank a node": ("wide mlp", 4, 4, SLOW_LINKS),
    "stages in turn": ("wide mlp", 8, 8, SLOW_LINKS),
    "16 bits": ("halves", 4, 2, SLOW_LINKS),
    "another order": ("tp is far", 8, 2, TYPICAL),
    "local steps": ("replicas", 8, 4, SLOW_LINKS),
    "neighbours": ("gossip", 3, 3, SLOW_LINKS),
    "compressed": ("codes", 4, 2, SLOW_LINKS),
    "sequences": ("decoder", 2, 2, SLOW_LINKS),
    "rows of images": ("large images", 4, 2, TYPICAL),
}


@cache
def found(case: str, most: float = float("inf"), prunes: bool = False) -> SearchResult:
    name, *cluster = CASES[case]
    return planning(MODELS[name], *cluster).searcher(most, prunes).search()


def as_tuple(one: SearchResult) -> tuple[object, ...]:
    return [(p.layout, p.time, p.nbytes) for p in one.best], one.pure


@pytest.mark.one_in(20)
@pytest.mark.parametrize("part", [1.0, 0.2])
@pytest.mark.parametrize("case", CASES)
def test_pruned_is_exhaustive(case: str, part: float) -> None:
    sizes = sorted(one.nbytes for one in found(case).looked)
    most = sizes[int(part * len(sizes))] if part < 1 else float("inf")
    pruned, exhaustive = found(case, most, prunes=True), found(case, most)
    assert as_tuple(pruned) == as_tuple(exhaustive)
    assert pruned.counts.looked <= exhaustive.counts.looked
    assert all(one.nbytes <= most for one in pruned.best)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("case", CASES)
def test_bounds_rise_to_what_a_layout_takes(case: str) -> None:
    name, *cluster = CASES[case]
    there = planning(MODELS[name], *cluster)
    bounds = LowerBounds(there.arranger, there.costs)
    for one in found(case).looked:
        first, second, third = (
            bound(one.layout) for bound in (bounds.seconds, bounds.with_sums, bounds.with_messages)
        )
        assert first <= second <= third <= one.time.seconds, one
        assert bounds.with_buckets(one.layout) <= one.time.seconds, one
        assert bounds.nbytes(one.layout) <= one.nbytes, one


def test_little_memory_is_met_by_recomputation_or_by_nothing() -> None:
    config = MODELS["wide mlp"]
    there = planning(config, 4, 2)
    least = there.searcher(1.0).search()
    assert not least.best
    assert least.least is not None
    sizes = {one.nbytes for one in found("slow links").looked}  # of the same layouts
    assert least.least.nbytes <= min(sizes)
    just = planning(config, 4, 2).searcher(float(least.least.nbytes)).search()
    assert [one.nbytes for one in just.best] == [least.least.nbytes]


def test_recomputation_saves_what_no_backward_pass_needs_at_once() -> None:
    """A rank whose backward passes follow their forward passes at once keeps all of one."""
    arranger = planning(MODELS["cnn"], 2).arranger

    def kept(**options: int) -> list[int]:
        plain = Candidate(**options, micro_batches=4)  # type: ignore[arg-type]
        ways = ("none", "stage")
        found = [arranger.arranged(plain._replace(recompute=how)) for how in ways]
        return [activations(a, rank, 64) for rank in range(2) for a in found]

    first, again, second, again_there = kept(dp=2)
    assert first == again == second == again_there > 0
    first, again, second, again_there = kept(pp=2)
    assert again < first
    assert again_there == second


def test_shapes_are_all_products() -> None:
    for ranks in (1, 2, 12, 64):
        there = [*shapes(ranks)]
        assert all(dp * cp * pp * tp == ranks for dp, cp, pp, tp in there)
        assert len({*there}) == len(there)
    assert len([*shapes(12)]) == 40  # 12 = 2^2 3: 10 ways to divide 2^2 among four, 4 of 3


def test_no_candidate_asks_for_what_has_no_effect() -> None:
    config = Config(batch_size=8)
    for shape in shapes(8):
        for one in candidates(config, shape):
            assert one.micro_batches * one.dp <= 8
            assert not (one.zero and one.replicas == 1)
            assert one.pp > 1 or one.schedule == "1f1b"
            by_stage = recomputed(one, has_blocks=False)
            assert bool(by_stage) == (one.pp > 1 and one.micro_batches > 1)
            again = recomputed(one, has_blocks=True)
            assert again == [one._replace(recompute="block"), *by_stage]
            assert not any(recomputed(other, has_blocks=True) for other in again)


def test_flags_are_those_of_the_command() -> None:
    one = Candidate(dp=2, tp=4, zero=1, sequence_parallel=True, micro_batches=8)
    assert one.flags == "--dp 2 --tp 4 --zero 1 --sequence-parallel --micro-batches 8"
    assert Candidate().flags == "--dp 1"
    names = [one.pure, Candidate(dp=2).pure, Candidate(dp=2, zero=3).pure, Candidate(cp=2).pure]
    assert names == ["", "dp", "zero 3", "cp"]


NOT_CHOSEN = ("double-tree", "dual-root", "bruck", "pat", "multiplying", "bucket", "swing")


def test_no_other_all_reduce_by_messages_is_faster() -> None:
    """Than those that a plan looks at, in groups of any size, between nodes and on one."""
    for ranks, nodes in ((2, 2), (3, 3), (6, 3), (8, 1), (12, 12), (16, 4)):
        times = planning(MODELS["cnn"], ranks, nodes, SLOW_LINKS).costs.exchanges
        for numbers in (1, 1000, 1_000_000):
            seconds = {
                name: times.seconds(
                    Exchange(
                        *("gradients", Collective.ALL_REDUCE, name, tuple(range(ranks)), numbers),
                        *(np.dtype(np.float32), Kind.SUM),
                    )
                )
                for name in ALGORITHMS
                if name not in (*THROUGH_MEMORY, *NOT_CHOSEN)
            }
            assert min(seconds.values()) == pytest.approx(min(seconds[x] for x in ALL_REDUCES))


def test_a_layer_that_cannot_be_cut_leaves_layouts_without_tp() -> None:
    def refuse(_: object) -> bool:
        raise ValueError("a way of the rule of a user's layer leaves its bias whole")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nnmpi.addons.planning.layer_ways.has_positions", refuse)
        best = planning(MODELS["cnn"], 4).searcher().search().best
    assert not any(one.layout.layout for one in best)


def test_options_that_a_plan_chooses_are_refused_beside_it() -> None:
    (one, *_) = found("sequences").best
    assert {*one.options} == {*PLANNED}


def test_layers_are_cut_in_the_ways_that_take_least() -> None:
    """Samples where activations are many, channels where weights are; where links are slow, all
    by samples, which is dp. A model with positions is cut along these."""
    slow = TYPICAL._replace(far=Link(1e-6, 1e-8))
    for batch, machine, ways in (
        (12, TYPICAL, "0=samples,3=samples,7=column,9=row,11=column"),
        (256, slow, ""),
    ):
        there = planning(replace(MODELS["cnn"], batch_size=batch), 4, 4, machine)
        found = LayerWays(there.arranger, there.costs)
        assert found.of(Candidate(tp=4)) == ways
        assert found.of(Candidate(dp=2, pp=2)) == found.of(Candidate(pp=2, tp=2)) == ""
    sequences = planning(MODELS["decoder"], 2, 2, slow)
    assert LayerWays(sequences.arranger, sequences.costs).of(Candidate(tp=2)) == ""


def test_the_fastest_ways_are_faster_than_those_by_bytes() -> None:
    there = planning(MODELS["cnn"], 4, 4, SLOW_LINKS)
    usual = Candidate(tp=4)
    ways = LayerWays(there.arranger, there.costs).of(usual)
    assert ways
    both = [
        step_time(there.arranger.arranged(usual._replace(layout=text)), there.costs).seconds
        for text in (ways, "")
    ]
    assert both[0] < both[1]


def test_large_images_are_cut_by_rows() -> None:
    """Where a batch has too few samples for dp; a pooling follows the layers around it."""
    one = replace(MODELS["large images"], batch_size=1)
    by_rows = "0=spatial,3=spatial,4=spatial,8=column"
    a = planning(one, 2).arranger.arranged(Candidate(tp=2, layout=by_rows))
    rows = {layer.path: layer.bounds for layer in a.sharding.layers if layer.how == "spatial"}
    first, behind = (0, 64, 128), (0, 32, 64)
    assert rows == {"0": first, "2": first} | dict.fromkeys("346", behind)
    (best, *_) = planning(one, 2).searcher().search().best
    assert best.layout.layout == by_rows


def test_units_by_rows_take_a_share_of_the_whole_where_columns_were_measured() -> None:
    config = replace(MODELS["large images"], batch_size=1)
    machine = measured(config, TYPICAL, UnitTimes(4.0, 4.0, 4.0))
    (whole,) = machine.models
    columns = {1: [UnitTimes(3.0, 3.0, 3.0)] * len(whole.units[1])}
    there = planning(
        config,
        2,
        machine=machine._replace(
            models=(whole, MeasuredModel(whole.graph, 2, whole.dtype, columns))
        ),
    )
    one = Candidate(tp=2, layout="0=spatial,3=spatial,4=spatial,8=column")
    found = there.costs.model.of(there.arranger.sharding(one), one, 1)
    assert found[:, 0].tolist() == [2.0, 2.0, 2.0, 2.0, 4.0, 3.0]  # forward passes


def test_only_models_of_positions_are_cut_along_these() -> None:
    """Whatever refuses to cut one of them: here one head among two ranks."""
    of = {
        name: has_positions(planning(config, 2).arranger.graph) for name, config in MODELS.items()
    }
    assert of == dict.fromkeys(MODELS, False) | {"decoder": True}
    assert has_positions(planning(decoder("2x1x16", 16), 2).arranger.graph)


def test_layers_that_differ_in_a_number_are_named_together() -> None:
    ways = {"stem": "samples", "b.0.fc": "column", "b.1.fc": "column", "b.0.o": "row", "b.1.o": "x"}
    assert as_layout(ways) == "stem=samples,b.*.fc=column,b.0.o=row,b.1.o=x"
