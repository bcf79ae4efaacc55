"""Seconds of a step on machines that are made up, beside formulas by hand."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from helpers.decoders import decoder
from helpers.planning import FREE_LINKS, SLOW_LINKS, Planning, measured, parts_add_up, planning

from nnmpi.addons.planning import waits
from nnmpi.addons.planning.candidate import Candidate
from nnmpi.addons.planning.machine import TYPICAL, Machine, UnitTimes
from nnmpi.addons.planning.network_speed import gbit_of_shares
from nnmpi.addons.planning.step_time import StepTime, step_model, step_time
from nnmpi.collectives.price import Link
from nnmpi.options.config import Config
from nnmpi.schedules.op import Kind

MLP = Config(
    model="mlp:20-30-30-30-30-10", data="synthetic:20:10:1000", batch_size=32, optimizer="sgd"
)
RING = replace(MLP, allreduce="ring")
NUMBERS = 20 * 30 + 3 * 30 * 30 + 30 * 10 + 4 * 30 + 10
SECONDS = UnitTimes(1.0, 2.0, 3.0)
FAR = FREE_LINKS._replace(far=Link(0.5, 1e-4), adding=1e-5)


def times(there: Planning, **options: Any) -> StepTime:
    return step_time(there.arranger.arranged(Candidate(**options)), there.costs)


def alike(machine: Machine = FREE_LINKS) -> Machine:
    """Each unit takes the same."""
    return measured(MLP, machine, SECONDS)


def units_of(config: Config) -> int:
    return len(planning(config, 1).costs.model.units)


def test_data_parallel_ranks_compute_their_samples_and_sum_by_a_ring() -> None:
    machine = alike(FAR)._replace(updates={"sgd": 1e-3}, step=0.25, micro_batch=0.125)
    found = times(planning(RING, 4, 4, machine), dp=4)
    samples, p = 32 // 4, 4
    assert found.compute == pytest.approx(samples * units_of(MLP) * 6)
    length = planning(MLP, 4, 4).arranger.arranged(Candidate(dp=4)).model_on(0).length
    assert NUMBERS < length < NUMBERS + 100  # with scalars, and room between them
    n = 4 * length
    ring = 2 * (p - 1) * (0.5 + n / p * 1e-4) + (p - 1) * n / p * 1e-5
    assert found.sums == pytest.approx(ring)
    assert found.update == pytest.approx(1e-3 * length)
    assert (found.tensor, found.bubble, found.other) == (0, 0, 0.375)
    assert found.seconds == pytest.approx(sum(found))


def test_sums_between_nodes_hide_behind_the_last_backward_pass() -> None:
    """All sums but that of bucket 0 begin earlier; then only what is left of them counts."""
    config = replace(RING, bucket_mb=1e-3)
    whole = times(planning(RING, 4, 4, alike(FAR)), dp=4)
    several = planning(config, 4, 4, alike(FAR))
    sums = several.arranger.arranged(Candidate(dp=4)).model_on(0).buckets
    assert len(sums) > 2
    first = sums[0].stop - sums[0].start
    alone = 6 * (0.5 + first * 1e-4) + 3 * first * 1e-5
    assert times(several, dp=4).sums == pytest.approx(alone)
    assert alone < whole.sums


@pytest.mark.parametrize("seconds_per_byte", [0.015, 0.04])
def test_sums_of_an_interleaved_stage_hide_behind_p_passes_of_the_stage_in_front(
    seconds_per_byte: float,
) -> None:
    """A rank with stages 0 and p makes the last p backward passes of stage p, then those of stage
    0: the sum of stage p begins p passes before the end."""
    p, config = 2, replace(MLP, model="mlp:20-30-30-30-10", bucket_mb=1e-3)
    machine = measured(config, FREE_LINKS._replace(far=Link(0, seconds_per_byte)), SECONDS)
    there = planning(config, 4, 4, machine)
    layout = Candidate(pp=p, dp=2, micro_batches=4, schedule="interleaved")
    a = there.arranger.arranged(layout)
    rank, *_ = step_model(a, there.costs).ranks
    sums = [4 * (b.stop - b.start) * seconds_per_byte for b in a.model_on(0).buckets]
    backward = rank.compute[0][Kind.B]
    hidden = min(sums[-1], p * backward)  # of stage p, which has the last bucket
    assert backward < hidden
    assert rank.waits.sums == pytest.approx(sum(sums) - hidden)


@pytest.mark.parametrize("micro", [1, 2, 4, 8])
def test_the_bubble_of_1f1b(micro: int) -> None:
    """p - 1 forward and backward passes, where all stages take the same."""
    there = planning(MLP, 2, 1, alike())
    found = times(there, pp=2, micro_batches=micro)
    stages = there.arranger.arranged(Candidate(pp=2)).stages
    counts = [sum(u.nodes.start in s for u in there.costs.model.units) for s in stages]
    samples = 32 // micro
    forward = [samples * n * 1.0 for n in counts]
    backward = [samples * n * 5.0 for n in counts]
    assert found.compute == pytest.approx(micro * (forward[0] + backward[0]))
    ends = forward[0] + micro * (forward[1] + backward[1]) + backward[0]
    assert found.compute + found.bubble == pytest.approx(ends)


def test_a_zero_bubble_has_less_of_it_and_messages_add_to_it() -> None:
    at = {"pp": 2, "micro_batches": 4}
    one = times(planning(MLP, 2, 1, alike()), **at)
    split = times(planning(MLP, 2, 1, alike()), **at, schedule="zb-h1")
    assert split.compute == pytest.approx(one.compute)
    assert split.bubble < one.bubble
    slow = times(planning(MLP, 2, 2, alike(FREE_LINKS._replace(far=Link(3.0, 0)))), **at)
    assert slow.bubble >= one.bubble + 2 * 3.0  # there and back


def test_recomputation_takes_a_forward_pass_more() -> None:
    there = planning(MLP, 2, 1, alike())
    at = {"pp": 2, "micro_batches": 4}
    plain, again = times(there, **at), times(there, **at, recompute=True)
    stage = there.arranger.arranged(Candidate(pp=2)).stages[0]
    own = sum(u.nodes.start in stage for u in there.costs.model.units)
    assert again.compute == pytest.approx(plain.compute + 4 * 8 * own)


def test_ranks_along_tp_compute_parts_and_sum_activations() -> None:
    there = planning(MLP, 2, 2, alike(FAR))
    found, a = times(there, tp=2), there.arranger.arranged(Candidate(tp=2))
    half = planning(MLP, 1, 1, alike()).costs.model.of(a.sharding, a.config, 32)
    assert found.compute == pytest.approx(half.sum())
    messages = [m for layer in a.sharding.layers for m in layer.sends for _ in m.passes]
    assert messages
    assert found.tensor > 0.5 * len(messages)  # the latency of each


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_zero_scatters_gradients_and_gathers_parameters(zero: int) -> None:
    machine = alike(FAR)._replace(updates={"sgd": 1e-3})
    there = planning(MLP, 4, 4, machine)
    found, a = times(there, dp=4, zero=zero), there.arranger.arranged(Candidate(dp=4, zero=zero))
    buckets = a.model_on(0).buckets
    n = [4 * (b.stop - b.start) for b in buckets]
    gathered = sum(3 * (0.5 + one / 4 * 1e-4) for one in n)
    scattered = gathered + sum(3 * one / 4 * 1e-5 for one in n)
    own = sum(stop - start for start, stop in a.owned_ranges(3))
    if zero == 1:
        assert found.sums == pytest.approx(scattered)
    else:  # hidden behind passes, which take 100 times as long, except for bucket 0
        first = 3 * (0.5 + n[0] / 4 * 1e-4)
        assert found.sums == pytest.approx(first * (zero - 1) + 3 * n[0] / 4 * 1e-5)
    assert found.update >= 1e-3 * own + (gathered if zero < 3 else 0)
    assert found.update <= 1e-3 * own + gathered + 4 * 4  # and short rows of numbers


MIXED = [
    *(Candidate(dp=2, pp=2, micro_batches=8, zero=zero) for zero in range(4)),
    *(Candidate(dp=2, tp=2, zero=zero) for zero in range(4)),
    Candidate(dp=4, zero=1),
    Candidate(cp=2, pp=2, zero=1),
    Candidate(pp=2, tp=2, micro_batches=4, schedule="zb-h1"),
    Candidate(dp=2, pp=2, micro_batches=8, schedule="interleaved"),
    Candidate(pp=4, micro_batches=8, schedule="zb-h1"),
]
DECODER = decoder("4x2x16", 16, batch_size=16, bucket_mb=2e-3)


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("layout", MIXED)
def test_parts_of_a_step_add_up_to_its_terms(layout: Candidate, nodes: int) -> None:
    there = planning(DECODER, 4, nodes, SLOW_LINKS)
    parts_add_up(there.arranger.arranged(layout), there.costs)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "interleaved"])
@pytest.mark.parametrize("zero", range(4))
def test_waits_of_few_micro_batches_tell_those_of_all(
    zero: int, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = planning(replace(DECODER, batch_size=96), 8, 8, SLOW_LINKS)
    at = Candidate(dp=2, pp=4, micro_batches=24, zero=zero, schedule=schedule)
    if schedule == "interleaved":
        at = at._replace(pp=2, dp=4)
    few = step_time(there.arranger.arranged(at), there.costs)
    monkeypatch.setattr(waits, "few_micro_batches", lambda a, sizes: (99, 99))
    assert step_time(there.arranger.arranged(at), there.costs) == pytest.approx(few)


# ---- replicas that are averaged

ALONE = replace(MLP, sync="local", every=4, outer="sgd")
NO_SCALARS = FAR._replace(far=Link(0.0, 1e-4))


def test_replicas_that_meet_in_every_step_take_a_step_of_data_parallelism_and_a_mean() -> None:
    """The mean follows the update, so no pass hides it; with one bucket none hides a sum either.

    Packing reads or writes all parameters 20 times: two copies, a difference, a mean, an outer
    step, new values."""
    often, plain = (
        planning(config, 4, 4, alike(NO_SCALARS)) for config in (replace(ALONE, every=1), MLP)
    )
    found, beside = (times(there, dp=4) for there in (often, plain))
    assert found.sums == pytest.approx(beside.sums, rel=0.02)  # scalars, and room between tensors
    assert (found.packing, beside.packing) == (pytest.approx(1e-10 * 4 * NUMBERS * 20, rel=0.05), 0)
    assert found._replace(sums=0, packing=0) == beside._replace(sums=0)
    seldom = times(planning(ALONE, 4, 4, alike(NO_SCALARS)), dp=4)
    assert seldom.sums == pytest.approx(found.sums / 4)
    assert seldom.packing == pytest.approx(found.packing / 4)


def test_fragments_wait_for_what_the_next_steps_do_not_hide() -> None:
    """On a slow link 2 of 4 steps hide a part of 2 exchanges, on a fast one they hide all."""
    apart = replace(ALONE, fragments=2)
    for beta, is_slow in ((1e-4, False), (1.0, True)):
        machine = alike(NO_SCALARS._replace(far=Link(0.0, beta), adding=0.0))
        whole, hidden = (
            times(planning(replace(apart, apply_after=later), 4, 4, machine), dp=4)
            for later in (0, 1)
        )
        alone = hidden.seconds - hidden.sums
        expected = whole.sums - 2 / 4 * alone if is_slow else 0.0
        assert hidden.sums == pytest.approx(expected, abs=0.01 * whole.sums)
        on_a_node = times(planning(replace(apart, apply_after=1), 4, 1, machine), dp=4)
        assert on_a_node.sums == times(planning(apart, 4, 1, machine), dp=4).sums


@pytest.mark.parametrize("spec", ["topk:0.1", "sign", "powersgd:2", "int8"])
def test_compressed_gradients_take_time_to_code_and_passes_hide_one_phase(spec: str) -> None:
    """A second phase begins after the passes; all of it counts, and all that is coded."""
    machine = alike(NO_SCALARS)._replace(coding={spec: 1.0})
    there = planning(replace(MLP, compress=spec, bucket_mb=1e-3), 4, 4, machine)
    model = step_model(there.arranger.arranged(Candidate(dp=4)), there.costs)
    (rank,), sums = model.ranks, model.last.exchanges["sums"]
    assert model.time.packing == pytest.approx(NUMBERS, rel=0.03)  # room between tensors
    assert 4 * 8 * NUMBERS < rank.bytes_copied < 4 * 80 * NUMBERS
    phases = {
        word: there.costs.exchanges.total(e for e in sums if e.what == word)
        for word in ("gradients", "sums")
    }
    assert bool(phases["sums"]) == (spec in ("powersgd:2", "int8"))
    assert phases["sums"] < model.time.sums < phases["sums"] + phases["gradients"] / 2
    plain = times(planning(MLP, 4, 4, machine), dp=4)
    assert (plain.packing, plain.compute) == (0, pytest.approx(model.time.compute))


def test_neighbours_share_the_links_of_nodes() -> None:
    """A ring of 4 on 2 nodes: each node sends two buffers at once; on 4 nodes each rank does."""
    gossip = replace(MLP, sync="gossip", every=1 << 20)
    n = 4 * NUMBERS
    for nodes in (2, 4):
        found = times(planning(gossip, 4, nodes, alike(NO_SCALARS)), dp=4)
        assert found.sums == pytest.approx(2 * n * 1e-4, rel=0.03)
    complete = replace(gossip, graph="complete")
    found = times(planning(complete, 4, 4, alike(NO_SCALARS)), dp=4)
    assert found.sums == pytest.approx(3 * n * 1e-4, rel=0.03)


@pytest.mark.parametrize("config", [MLP, ALONE])
def test_a_step_on_the_network_that_is_named_computes_for_the_share(config: Config) -> None:
    machine = alike(NO_SCALARS)._replace(updates={"sgd": 1e-3}, step=0.25, micro_batch=0.125)
    there = planning(config, 4, 4, machine)
    a = there.arranger.arranged(Candidate(dp=4))
    needed = gbit_of_shares(a, there.costs)
    for share, gbit in needed.items():
        assert gbit is not None
        rate = Link(0.0, 8e-9 / gbit)
        found = times(planning(config, 4, 4, machine._replace(far=rate)), dp=4)
        computing = found.compute + found.other + 1e-3 * a.model_on(0).length
        assert computing / found.seconds == pytest.approx(float(share[:-1]) / 100, rel=1e-6)
    late = planning(config, 4, 4, machine._replace(far=Link(1e6, 0)))
    assert gbit_of_shares(a, late.costs)["99%"] is None


def test_replicas_over_cp_count_their_own_sums_once() -> None:
    plain = replace(DECODER, every=2, sync="local")
    found, beside = (
        times(planning(config, 2, 2, SLOW_LINKS), cp=2) for config in (plain, replace(DECODER))
    )
    assert found.sums == pytest.approx(beside.sums)


def test_stages_of_replicas_that_run_again_have_a_price() -> None:
    at = {"dp": 2, "pp": 2, "micro_batches": 4, "recompute": "stage"}
    assert times(planning(ALONE, 4, 4, alike(NO_SCALARS)), **at).seconds


# ---- properties


@pytest.mark.parametrize("zero", [0, 3])
def test_exchanges_of_passes_hide_nothing_that_travels_on_the_same_link(zero: int) -> None:
    instant = measured(MLP, FAR, UnitTimes(0.0, 0.0, 0.0))
    there = planning(replace(RING, bucket_mb=1e-3), 4, 4, instant)
    model = step_model(there.arranger.arranged(Candidate(dp=2, tp=2, zero=zero)), there.costs)
    (rank,), time = model.ranks, model.time
    of = rank.exchanges
    travelling = there.costs.exchanges.total([*of["gathers"], *of["sums"]])
    assert time.tensor > travelling / 2 > 0
    assert time.sums == pytest.approx(travelling)


def test_faster_machines_are_faster() -> None:
    layouts = [
        Candidate(dp=4), Candidate(dp=4, zero=1), Candidate(dp=4, zero=3), Candidate(tp=4),
        Candidate(pp=4, micro_batches=4), Candidate(dp=2, pp=2, micro_batches=2),
        Candidate(dp=2, tp=2), Candidate(pp=4, schedule="zb-h1", micro_batches=8),
    ]  # fmt: skip
    slower = TYPICAL._replace(far=Link(1e-4, 1e-8))
    machines = [
        slower._replace(speed=1e9), slower, TYPICAL, TYPICAL._replace(speed=1e12, step=0.0)
    ]  # fmt: skip
    for layout in layouts:
        several = [planning(MLP, 4, 4, machine) for machine in machines]
        found = [step_time(one.arranger.arranged(layout), one.costs).seconds for one in several]
        assert all(b <= a for a, b in pairwise(found)), layout


def test_more_micro_batches_have_a_smaller_bubble() -> None:
    there = planning(MLP, 4, 1, alike())
    found = [times(there, pp=4, micro_batches=m) for m in (1, 2, 4, 8)]
    assert all(b.bubble < a.bubble for a, b in pairwise(found))
