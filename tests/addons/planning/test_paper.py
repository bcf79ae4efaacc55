"""Ranks of every strategy on paper, beside the ranks of a run."""

from collections import Counter
from functools import partial
from itertools import islice
from typing import Any

import pytest
from helpers.training.laws_language import MODELS, POSITIONS, many_tokens
from helpers.training.on_paper import PLAIN, arranged, held
from helpers.training.pipelined import digits

from nnmpi import Config, Trainer
from nnmpi.addons.layer_ways.experts_on_ranks import Routing, lengths
from nnmpi.addons.planning.paper import recording
from nnmpi.addons.planning.paper.built import built
from nnmpi.addons.planning.paper.rank import exchanges, traffic
from nnmpi.addons.planning.paper.rank_kinds import rank_kinds
from nnmpi.collectives.algorithms import Collective
from nnmpi.collectives.step import bounds
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.exchanges import Traffic
from nnmpi.parallel.step.executor import StepState
from nnmpi.schedules.op import Kind

MLP = {"model": "mlp:64-48-40-32-24-10", "optimizer": "adam"}
CNN = {"model": "digits-cnn", "momentum": 0.9}

STRATEGIES: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, MLP),
    "replicas": (3, CNN),
    "a node": (2, CNN | {"allreduce": "shared"}),
    "zero 1": (3, MLP | {"zero": 1}),
    "zero 2": (2, MLP | {"zero": 2, "dtype": "bfloat16"}),
    "zero 3": (3, MLP | {"zero": 3}),
    "a pipeline": (4, MLP | {"pp": 2, "micro_batches": 2}),
    "slices": (3, CNN | {"reproducible": True, "slices": 5}),
    "pipedream": (3, MLP | {"pp": 3, "schedule": "pipedream"}),
    "pipedream with vertical sync": (
        3,
        MLP | {"pp": 3, "schedule": "pipedream", "vertical_sync": True},
    ),
    "bsp servers": (5, CNN | {"servers": 2}),
    "ssp servers": (4, MLP | {"sync": "ssp", "servers": 1}),
    "asp servers": (3, MLP | {"sync": "asp"}),
}


def holds_as_on_paper(comm: Comm, options: dict[str, Any]) -> None:
    with Trainer(Config(**(PLAIN | options)), None, digits(), comm) as trainer:
        steps = 4
        with_steps = trainer.strategy.steps(trainer.train, StepState())
        # workers and servers go at a pace of their own, to the end of the epoch
        taken = list(islice(with_steps, None if trainer.arrangement.servers else steps))
        store = trainer.optimizer.parameters[0].store
        on_paper = built(trainer.arrangement, comm.rank)
        assert held(on_paper.store, on_paper.optimizer) == held(store, trainer.optimizer)
        assert taken
        assert type(on_paper.store) is type(store)
        if trainer.arrangement.strategy.name == "pipedream":  # its pipeline is full
            versions: Any = store
            assert versions.slot_bytes() == (versions.buffers - 1) * versions.flat.nbytes
        comm.barrier()
        with_steps.close()


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_rank_on_paper_holds_what_it_holds_in_a_run(name: str) -> None:
    ranks, options = STRATEGIES[name]
    threads.run(ranks, holds_as_on_paper, options)


# ---- what is sent


def test_workers_that_do_not_wait_have_statistics_of_their_own() -> None:
    """Of servers alone BatchNorm's statistics go along dp, if all make each step together."""
    said = {
        sync: traffic(arranged(Cluster.on_paper(4), sync=sync, **more, **CNN), 0, 24)["dp"]
        for sync, more in (("bsp", {"servers": 1}), ("ssp", {"staleness": 2}), ("asp", {}))
    }
    assert said["ssp"] == said["asp"] == Traffic()
    assert said["bsp"].messages


@pytest.mark.parametrize("how", [{"reproducible": True}, {"sync": "bsp", "servers": 1}])
def test_gradients_that_no_bucket_has_are_not_reduced(how: dict[str, Any]) -> None:
    a = arranged(Cluster.on_paper(4), **CNN, **how)
    made = [e for along in exchanges(a, 1, 24).values() for e in along]
    assert not {e.during for e in made} & {Kind.SUM, Kind.AGREE}
    assert made


def of_tokens(ranks: int, model: str, **options: Any) -> Arrangement:
    cut = {"tp": ranks, "sequence_parallel": True, "given": many_tokens}
    return arranged(Cluster.on_paper(ranks), partial(MODELS[model], POSITIONS), **cut, **options)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("model", ["everywhere", "routed"])
def test_experts_take_tokens_without_numbers(
    model: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pass falls back to zeros, all of which would go to the first experts."""
    monkeypatch.setattr(recording, "small", None)
    assert traffic(of_tokens(4, model, dtype=dtype), 0, 24)["tp"].bytes


def test_tokens_that_all_experts_take_go_to_all_ranks() -> None:
    """All ranks together send as many numbers as all tokens have."""
    a, samples = of_tokens(4, "everywhere"), 24
    layers = [node for node in a.graph.nodes if node.kind == "Experts"]
    width = a.graph.edges[layers[0].outputs[0]].sample[-1]
    numbers = Counter[Kind]()
    for rank in range(4):
        for e in exchanges(a, rank, samples)["tp"]:
            numbers[e.during] += e.elements * e.times * (e.operation is Collective.MESSAGE)
    # to 3 other ranks a position takes its numbers and the gates of their experts, and comes back
    experts = [node.settings["num_experts"] for node in layers]
    trips = sum(POSITIONS * 6 * width + gates_sent(E) for E in experts)
    assert numbers[Kind.F] == numbers[Kind.B] == samples * trips


def gates_sent(experts: int) -> int:
    """Of a sample, of 4 ranks that have about equal parts of the positions and of the experts."""
    tokens, here = (lengths(bounds(n, 4)) for n in (POSITIONS, experts))
    return sum(t * E for r, t in enumerate(tokens) for q, E in enumerate(here) if r != q)


@pytest.mark.parametrize("top_k", [1, 2, 5])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_most_tokens_that_go(ranks: int, top_k: int) -> None:
    """No token goes to more than `top_k` ranks, to none twice, and no expert takes more than it
    has slots; nothing that could go stays."""
    routing = Routing(lengths(bounds(6, ranks)), lengths(bounds(5, ranks)), top_k, slots=2)
    for me, tokens in enumerate(routing.tokens):
        sends, receives, others = routing.sends(me), routing.receives(me), {*range(ranks)} - {me}
        room = {q: min(tokens, 2 * routing.experts[q]) for q in range(ranks)}
        assert all(sends[q] <= room[q] for q in others)
        assert sum(sends[q] for q in others) == min(tokens * top_k, sum(room[q] for q in others))
        assert sum(receives[q] for q in others) == min(6 - tokens, 2 * routing.experts[me])
        assert all(receives[q] <= routing.tokens[q] for q in others)
        assert sends[me] == receives[me]


# ---- clusters


@pytest.mark.parametrize("more", [{}, {"optimizer": "adam"}, {"dtype": "bfloat16"}])
def test_ranks_that_may_be_lost_have_parameters_of_their_own(more: dict[str, Any]) -> None:
    options = CNN | {"allreduce": "shared"} | more
    cluster = Cluster.on_paper(4, 2)._replace(survives=True)
    survives = arranged(cluster, **options)
    assert (survives.store.name, survives.algorithm) == ("replica", "shared")
    for rank in range(4):
        one = built(survives, rank)
        assert one.store.parameter_bytes() > 0
    of_zero = arranged(cluster, **{**options, "zero": 1})
    assert (of_zero.store.name, of_zero.algorithm) == ("zero 1", "ring")


def test_workers_have_no_optimizer_state_and_servers_a_slice() -> None:
    a = arranged(Cluster.on_paper(5), servers=2, **MLP)
    rows = [held(one.store, one.optimizer) for one in (built(a, rank) for rank in range(5))]
    assert [row["optimizer"] > 0 for row in rows] == [False] * 3 + [True] * 2
    assert len({row["parameters"] for row in rows}) == 1
    whole = rows[0]["gradients"]
    assert rows[3]["gradients"] + rows[4]["gradients"] == pytest.approx(whole, rel=0.02)


def test_what_each_rank_compares_with_needs_memory_too() -> None:
    def on_ranks(n: int, **options: Any) -> Any:
        a = arranged(Cluster.on_paper(n), model="mlp:64-20-10", zero=n - 1, **options)
        return rank_kinds(a, 24)[0].memory

    both = zip(on_ranks(2), on_ranks(1), strict=True)
    assert on_ranks(2, verify=True) == tuple(map(sum, both))
