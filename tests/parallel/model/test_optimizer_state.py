"""The state of optimizers: by path, whole, from any layout into any other."""

from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.training import laws_resume
from helpers.training.laws_resume import go, go_on, near, one_rank, start, trainer_of
from helpers.training.unusual_models import Sometimes

import nnmpi
from nnmpi import nn, optim
from nnmpi.comm import Comm, OtherRankError
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.nn.initial import normal
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Place
from nnmpi.parallel.model.whole import load_state, whole_optimizer
from nnmpi.parallel.step.executor import StepState


@pytest.mark.parametrize(("p", "per_node"), [(3, 2), pytest.param(4, 2, marks=pytest.mark.long)])
def test_nodes_that_share_memory(p: int, per_node: int) -> None:
    """Each node has the whole state, and its ranks have parts of it."""
    threads.run(p, laws_resume.training_goes_on_in_another_layout, per_node=per_node)


# ---- parameters that are not used in each step, or are in several stages


def sometimes() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Sometimes(8), nn.Linear(8, 10))


def tied() -> nn.Sequential:
    """The first and the last stage share a weight."""
    first, last = nn.Linear(8, 8), nn.Linear(8, 8)
    last.weight = first.weight
    layers = [nn.Linear(64, 8), nn.Tanh(), first, nn.Tanh(), last, nn.Tanh(), nn.Linear(8, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


@pytest.mark.parametrize(
    "options",
    [
        {"model": sometimes, "dp": 3, "allreduce": "ring"},
        {"model": sometimes, "dp": 3, "allreduce": "shared"},
        {"model": sometimes, "pp": 3, "cut": "2,3"},
        {"model": tied, "pp": 3, "cut": "3,5"},
        {"model": tied, "dp": 3},
        {"model": tied, "dp": 2, "pp": 2, "cut": "5", "zero": 1, "allreduce": "ring"},
        {"model": sometimes, "dp": 3, "zero": 3, "allreduce": "ring"},
    ],
    ids=lambda options: " ".join(str(getattr(v, "__name__", v)) for v in options.values()),
)
def test_steps_are_counted_for_each_parameter(options: dict[str, Any]) -> None:
    case = {"model": options["model"], "optimizer": "adam"}
    middle, wanted = one_rank(3, case), one_rank(6, case)

    def rank(comm: Comm) -> None:
        saved = start(comm, 3, **{**options, **case})
        near(saved, middle)
        near(go_on(comm, saved, 3, **{**options, **case}), wanted)
        near(go_on(comm, saved, 3, **case, allreduce="ring"), wanted)

    threads.run(options.get("dp", 1) * options.get("pp", 1), rank)
    if options["model"] is sometimes:
        counts = {name: int(n) for name, n in wanted.optimizer.items() if name.endswith(".step")}
        assert counts.pop("2.linear.weight.step") == 3
        assert set(counts.values()) == {6}


@pytest.mark.parametrize(
    "layout", [{"dp": 2}, {"dp": 2, "zero": 3}, {"pp": 2, "cut": "2"}], ids=str
)
def test_an_optimizer_without_arrays_has_counts_of_steps(layout: dict[str, Any]) -> None:
    case = {"model": plain, "optimizer": "sgd", "momentum": 0.0}
    middle, wanted = one_rank(3, case), one_rank(6, case)

    def rank(comm: Comm) -> None:
        saved = start(comm, 3, **layout, **case)
        near(saved, middle)
        near(go_on(comm, saved, 3, **layout, **case), wanted)

    threads.run(2, rank)
    assert {name.rpartition(".")[2]: int(n) for name, n in middle.optimizer.items()} == {"step": 3}


# ---- other strategies


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (3, {"servers": 2, "sync": "bsp"}),
        (2, {"pp": 2, "schedule": "pipedream"}),
        (2, {"reproducible": True, "slices": 4}),
    ],
)
def test_other_strategies(ranks: int, options: dict[str, Any]) -> None:
    """After a run the first rank has the state, which another run takes over unchanged."""

    def rank(comm: Comm) -> list[dict[str, np.ndarray]]:
        trainer = trainer_of(comm, **options, model=plain, optimizer="adam", steps=4)
        trainer.fit(NullReport())
        found = laws_resume.everywhere(trainer)
        again = trainer_of(comm, **options, model=plain, optimizer="adam", steps=4)
        again.load_optimizer_state_dict(found)
        same = again.optimizer_state_dict()
        again.close()
        return [found, same]

    (found, same), *_ = threads.run(ranks, rank)
    assert list(found) == list(
        start(nnmpi.comm.comm_self(), 1, optimizer="adam", model=plain).optimizer
    )
    assert all(
        found[name].any() and found[name].tobytes() == same[name].tobytes() for name in found
    )
    if "servers" in options:
        wanted = one_rank(4, {"optimizer": "adam", "model": plain}).optimizer
        assert laws_resume.distance(found, wanted) < laws_resume.BOUND


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_state_that_was_loaded_is_verified_too(dtype: str) -> None:
    saved = one_rank(3, {"optimizer": "adam"})

    def rank(comm: Comm) -> None:
        trainer = trainer_of(comm, optimizer="adam", verify=True, steps=2, dtype=dtype)
        trainer.load_optimizer_state_dict(saved.optimizer)
        assert trainer.fit(NullReport())["event"] == "done"
        assert set(trainer.optimizer.steps) == {5}

    threads.run(2, rank)


# ---- parts of tensors


class Cut(nn.Module):
    """A weight cut by columns, whose memory is by columns; one cut by rows; a bias on all ranks."""

    def __init__(self, comm: Comm) -> None:
        own = [(n * comm.rank // comm.size, n * (comm.rank + 1) // comm.size) for n in (7, 5)]
        self.columns = Parameter.lazy(Place("", (3, 7), ((0, 3), own[0])), normal(1.0), (1, 0))
        self.rows = Parameter.lazy(Place("", (5, 2), (own[1], (0, 2))), normal(1.0))
        self.bias = nn.Parameter(np.arange(4.0, dtype="float32"))


def cut_adam(comm: Comm, steps: int) -> tuple[nn.Module, optim.Adam]:
    """After some steps with gradients that depend on the place in the whole tensor only."""
    model = Cut(comm)
    adam = optim.Adam(model.parameters())
    for step in range(steps):
        for p in model.parameters():
            whole = np.random.default_rng(step).standard_normal(p.place.shape)
            p.grad = whole[p.place.slices].astype("float32")
        adam.step()
    return model, adam


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 1)])
def test_parts_of_tensors(before: int, after: int) -> None:
    def save(comm: Comm) -> dict[str, np.ndarray]:
        model, adam = cut_adam(comm, 3)
        if comm.size > 1:
            with refused("part of the state of columns", "Trainer.optimizer_state_dict"):
                adam.named_state()
        return dict(whole_optimizer(adam, model, comm))

    state, *others = threads.run(before, save)
    assert not any(others)
    _, adam = cut_adam(nnmpi.comm.comm_self(), 3)
    wanted = adam.named_state()
    assert list(state) == list(wanted)
    for name in wanted:
        np.testing.assert_array_equal(state[name], wanted[name], name, strict=True)

    def back(comm: Comm) -> dict[str, np.ndarray]:
        model, adam = cut_adam(comm, 1)
        load_state(adam, model, state, comm)
        return dict(whole_optimizer(adam, model, comm).on_all_ranks())

    for found in threads.run(after, back):
        for name in wanted:
            np.testing.assert_array_equal(found[name], wanted[name], name, strict=True)


# ---- refusals


REFUSED = {
    "missing": (lambda s: s.pop("9.bias.step"), r"only the optimizer has 9\.bias\.step \(\)"),
    "unknown": (lambda s: s.update(x=1), "only the state has x"),
    "shape": (
        lambda s: s.update({"6.weight.gradient_sum": np.ones((96, 7))}),
        r"6\.weight\.gradient_sum has shape \(96, 7\), the optimizer needs \(7, 96\)",
    ),
    "a count": (lambda s: s.update({"6.weight.step": 1.5}), r"6\.weight\.step is 1\.5"),
}


@pytest.mark.parametrize("options", [{}, {"pp": 2}], ids=str)
@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_on_all_ranks(case: str, options: dict[str, Any]) -> None:
    """Also by a rank that does not have the parameter; and nothing is changed."""
    spoil, words = REFUSED[case]
    state = dict(one_rank(3, {"optimizer": "adam"}).optimizer)
    spoil(state)

    def rank(comm: Comm) -> None:
        trainer = trainer_of(comm, optimizer="adam", **options)
        with pytest.raises((ValueError, OtherRankError), match=words):
            trainer.load_optimizer_state_dict(state)
        saved = go(trainer, StepState(), 1)
        wanted = start(comm, 1, optimizer="adam", **options)
        assert laws_resume.distance(saved.optimizer, wanted.optimizer) == 0

    threads.run(2, rank)


def test_a_state_on_one_rank_only_is_refused_on_all() -> None:
    state = one_rank(3, {"optimizer": "adam"}).optimizer

    def rank(comm: Comm) -> None:
        trainer = trainer_of(comm, optimizer="adam")
        with pytest.raises((ValueError, OtherRankError), match="only the optimizer has"):
            trainer.load_optimizer_state_dict({} if comm.rank else state)
        assert set(trainer.optimizer.steps) == {0}

    threads.run(2, rank)
