"""What a run keeps in every layout: how it ends, what it saves, what --verify sees; of a Comm.

That every layout gives the values of one rank is in the table of conformance.
"""

import copy
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from helpers.once import by_first, folder
from helpers.sample import one_in
from helpers.training.laws_layers import images
from helpers.training.pipelined import (
    BOUND,
    CNN,
    MLP,
    MODELS,
    RECOMPUTED,
    SCHEDULES,
    Noted,
    Options,
    case_for,
    contents,
    digits,
    is_same,
    run,
    same_on_all,
)

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm, comm_self
from nnmpi.io.output import Event, NullReport
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.end import DivergedError

RING: Options = {"allreduce": "ring", "bucket_mb": 0.005}
SUMS: list[Options] = [{"allreduce": "shared"}, RING, *({**RING, "zero": z} for z in (1, 2, 3))]
"""How gradients are summed over dp, and who has what of the optimizer and the model."""
SHORT: Options = {"batch_size": 48, "steps": 4}
"""An epoch, of which the last batch has 4 samples, and the first step of the next one."""


def layouts(comm: Comm, schedules: tuple[str, ...] = ("1f1b",)) -> Iterator[Options]:
    """All axes alone, or two of them together where there are four ranks."""
    p = comm.size
    if p != 4:
        yield from ({"dp": p, **sums} for sums in SUMS)
    if p in (2, 3):
        yield {"tp": p, "allreduce": "ring"}
        yield from ({"pp": p, "schedule": schedule} for schedule in schedules)
    if p == 4:
        yield from ({"dp": 2, "pp": 2, "cut": "5", **sums} for sums in SUMS)
        yield {"dp": 2, "tp": 2, **SUMS[3]}
        yield {"pp": 2, "tp": 2}


def case_of(layout: Options, case: Options) -> Options:
    """The case, or a deeper model for a layout with many stages."""
    return case_for(layout.get("schedule", "1f1b"), case, layout.get("pp", 1))


# ---- bits


def who_pushes_changes_no_bits(comm: Comm) -> None:
    """Overlapped or not, from the backward pass or by a thread."""
    ways: list[Options] = [{"overlap": False}, {"progress": "poll"}, {"progress": "thread"}]
    for layout in one_in(3, layouts(comm), "pushes"):
        if layout.get("dp", 1) > 1:
            one = {**CNN, **SHORT, **layout}
            found = {run(comm, **one, **way).done["parameters_sha256"] for way in ways}
            assert len(found) == 1


def recompute_changes_no_bits(comm: Comm) -> None:
    """Neither of parameters nor of running statistics, which are tracked once."""
    for layout in one_in(3, layouts(comm, RECOMPUTED), "recompute"):
        if layout.get("zero", 1) == 1:
            case = {**case_of(layout, CNN), **SHORT, "clip_norm": None, "micro_batches": 4}
            is_same(run(comm, **case, **layout, recompute=True), run(comm, **case, **layout))


# ---- --verify


def verify_finds_no_difference(comm: Comm) -> None:
    if comm.size > 1:
        types = cycle(({"dtype": "float64"}, {"dtype": "float32", "clip_norm": 0.3}))
        found = zip(layouts(comm, SCHEDULES), types, strict=False)
        for layout, options in one_in(3, found, "verify"):
            _verify_finds_nothing(comm, layout, options)


def _verify_finds_nothing(comm: Comm, layout: Options, options: Options) -> None:
    case = {**case_of(layout, CNN), **SHORT, "clip_norm": None, "micro_batches": 3, **options}
    got = run(comm, **case, **layout, verify=True)
    steps = [e for e in got.events if e["event"] == "verify"]
    assert [e["step"] for e in steps] == [1, 2, 3, 4]
    assert all(e["replicas_equal"] for e in steps)
    for subject in ("loss", "gradients", "parameters"):
        measured, largest = f"{subject}_relative", got.done["largest_differences"]
        assert largest[measured] == max(e[measured] for e in steps)
        assert options["dtype"] == "float32" or largest[measured] < BOUND


def verify_finds_what_differs(comm: Comm) -> None:
    """A model that sees how many samples it is given: other numbers of them are other models."""

    class Partial(nn.Module):
        def __init__(self) -> None:
            self.inner = nn.Linear(4, 3)

        def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
            y: nnmpi.Tensor = self.inner(x) * (1 + 1e-6 * x.shape[0])
            return y

    config = Config(steps=9, dtype="float64", verify=True, batch_size=8)
    if comm.size == 1:
        with pytest.raises(ValueError, match="verify with 1 rank: there is nothing to compare"):
            Trainer(config, Partial, clouds(), comm)
        return
    trainer = Trainer(config, Partial, clouds(), comm)
    with pytest.raises(AgreedError, match="differ from those of one rank by") as ended:
        trainer.fit(NullReport())
    assert same_on_all(comm, str(ended.value))


# ---- initial values and files


def initial_values_are_those_of_one_rank(comm: Comm) -> None:
    """Each rank draws its part of the whole tensor, and nothing depends on the layout."""
    for name, case in {**MODELS, "drawn by itself": {"build": images}}.items():
        alone = partial(_values, comm_self(), **case, seed=5)
        wanted = by_first(comm, alone)
        for layout in one_in(3, layouts(comm), name):
            _same_values(_values(comm, **case, **layout, seed=5), wanted)


def what_one_layout_saves_another_loads(comm: Comm) -> None:
    """Each from the one before it, and one rank from each."""
    with folder(comm) as name:
        path = f"{name}/model.safetensors"
        found = one_in(3, layouts(comm), "saves")
        of_last: Options = found[-1]
        for layout in found:
            got = run(comm, **CNN, **of_last, micro_batches=2, steps=3, save=path)
            comm.barrier()
            _same_values(nnmpi.load(path), got.state)
            for where, way in ((comm_self(), {}), (comm, layout)):
                _same_values(_values(where, **CNN, **way, load=path, seed=5), got.state)
            comm.barrier()
            of_last = layout


def _values(comm: Comm, build: Any = None, **options: Any) -> dict[str, np.ndarray]:
    """What a run begins with: the whole model, on every rank."""
    trainer = Trainer(Config(**options, dtype="float64"), build, digits(), comm)
    found, digest = contents(trainer), trainer.strategy.full_state.sha256()
    assert same_on_all(comm, digest)
    trainer.close()
    return found


def _same_values(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name, strict=True)


# ---- the end of a run


class StopsOn:
    """A callback: a rank that wants to stops the run on an occasion of its second step."""

    def __init__(self, occasion: str, wanting: bool) -> None:
        self._wanting = wanting
        setattr(self, occasion, self._hear)

    def _hear(self, trainer: Trainer, event: Event) -> None:
        if trainer.step == 2 and self._wanting:
            trainer.stop()


def a_stop_in_a_callback_ends_training_after_its_step(comm: Comm) -> None:
    """In the middle of an epoch of 5 steps, whichever rank asks."""
    occasions = cycle(("on_step", "on_log", "on_evaluate"))
    for layout in one_in(3, (*layouts(comm), {"reproducible": True}), "stop in a callback"):
        for wanting, occasion in zip({0, comm.size - 1}, occasions, strict=False):
            case = {**case_of(layout, MLP), **layout, "batch_size": 20}
            config = Config(**case, log_every=1, evaluate_every=2)
            callback = StopsOn(occasion, comm.rank == wanting)
            event = Trainer(config, None, digits(), comm, callbacks=[callback]).fit(NullReport())
            assert (event["event"], event["steps"]) == ("stopped", 2), (layout, occasion)
            assert same_on_all(comm, event["parameters_sha256"])


def all_stop_when_one_wants_to(comm: Comm) -> None:
    """In the middle of an epoch of 5 steps: outside of callbacks the ranks agree in the next
    step."""
    for layout in one_in(3, (*layouts(comm), {"reproducible": True}), "stop"):
        for wanting in {0, comm.size - 1}:
            config = Config(**case_of(layout, MLP), **layout, batch_size=20)
            trainer = Trainer(config, None, digits(), comm)
            stop_at = 2 if comm.rank == wanting else 0
            event = trainer.fit(Noted(lambda step: step == stop_at and trainer.stop()))  # noqa: B023
            assert event["event"] == "stopped"
            assert event["steps"] == (2 if comm.size == 1 else 3)  # one rank need not ask another
            assert same_on_all(comm, f"{event['steps']} {event['parameters_sha256']}")


def _all_ranks_end_alike(comm: Comm, name: str, words: str, **options: Any) -> None:
    for layout in one_in(3, layouts(comm, SCHEDULES), name):
        case = {**case_of(layout, MLP), "clip_norm": None, **options}
        with pytest.raises(DivergedError, match=words) as ended:
            run(comm, **case, **layout)
        assert same_on_all(comm, str(ended.value))


def a_loss_that_is_no_number_ends_all_ranks_alike(comm: Comm) -> None:
    _all_ranks_end_alike(comm, "diverged", "loss became", lr=1e30, dtype="float32")


def a_loss_that_ends_far_above_where_it_began_ends_all_ranks_alike(comm: Comm) -> None:
    _all_ranks_end_alike(comm, "rose", "the loss diverged", lr=1e9, optimizer="adam")


def clouds(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Samples of three classes."""
    rng = np.random.default_rng(3)
    return rng.standard_normal((n, 4)), np.arange(n) % 3


class Lost(nn.Module):
    """Two of three classes have no chance: an infinite loss, of which all gradients are finite."""

    def __init__(self) -> None:
        self.last = nn.Linear(4, 3)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        y: nnmpi.Tensor = self.last(x)
        return y + np.array([0, -np.inf, -np.inf], y.dtype)


def nothing_moves(trainer: Trainer) -> None:
    """Its first step ends the run, and is not made."""
    before = copy.deepcopy(trainer.model.state_dict())
    with pytest.raises(DivergedError, match="loss became inf"):
        trainer.fit(NullReport())
    for name, array in trainer.model.state_dict().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def a_loss_that_is_no_number_moves_nothing(comm: Comm) -> None:
    for options in ({"allreduce": "shared"}, {"allreduce": "ring"}, {"reproducible": True}):
        nothing_moves(Trainer(Config(batch_size=32, **options), Lost, clouds(), comm))
