"""A step in which ranks are killed between any two lines, and what is left of it on the others."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial, partialmethod
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.arrays.kernels import undo
from nnmpi.arrays.kernels.steps import adam_loop, scale_loop
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.comm.transport.base import RankLost
from nnmpi.data import Load
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement import flat_buffer
from nnmpi.parallel.model.snapshot import SavedRange, saved
from nnmpi.parallel.step.executor import Executor, StepResult, StepState
from nnmpi.parallel.step.torn import SeenStep, TornStep
from nnmpi.parallel.step.update import Outcome, Update

Options = Mapping[str, Any]
Rows = dict[tuple[str, Any, str], np.ndarray]
"""Values ("") and running sums by name of each part of each tensor, in the order of memory."""

STEPS = 4
TORN = 2  # the number of the step in which ranks are killed: there are sums, and a version before
BETAS = (0.8, 0.95)  # from that step on
PACKAGE = Path(nnmpi.__file__).parent
TRACED = [str(PACKAGE / part) for part in ("parallel", "optim", "nn", "arrays")]


def build() -> nn.Module:
    """With running statistics, and a parameter that some steps do not use."""
    torso = (nn.Flatten(), nn.Linear(16, 9), nn.BatchNorm1d(9), nn.Tanh())
    return nn.Sequential(*torso, nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3))


def torn_within(*args: Any, compiled: Callable[..., Any]) -> Any:
    """A compiled kernel that is killed between any two blocks, and within the one in the middle."""
    arrays, numbers, kept = args[:6], args[6:13], args[13:]
    n = len(arrays[0])
    last, stop = n // 2, n // 2 + min(n // 2, 16)
    if not kept or stop == last or undo.note(*kept)[0] % (1 << undo.LENGTH_BITS):
        return compiled(*args)

    def run(part: slice) -> Any:
        return compiled(*(a if a is None else a[part] for a in arrays), *numbers, *kept)

    run(slice(last))
    run(slice(last, stop))
    undo.note(*kept)[0] -= ((stop - last) << undo.LENGTH_BITS) - (stop - last)
    values = [] if arrays[5] is None else [arrays[5]]
    for a in (arrays[0], *arrays[2:4], *values):
        a[last:stop:2] = np.nan
    return run(slice(last, n))


class Lines:
    """Calls `act` when a line of that number of the package runs on this thread, from 1."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self.number, self.act, self.count = number, act, 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith((*TRACED, __file__)):
            return None
        if event == "line":
            self.count += 1
            if self.count == self.number:
                sys.settrace(None)
                self.act()
        return self

    @contextmanager
    def watched(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)


class Left(NamedTuple):
    """What a rank that is left has after a step that was torn."""

    version: int
    outcome: Outcome | None
    owned: tuple[SavedRange, ...]
    buffers: dict[str, np.ndarray]
    lines: int  # that were counted in its step, or its update
    more: int  # and in finishing it


class Deaths(NamedTuple):
    """Ranks with the number of the line at which each is killed: in the step, or in its update
    alone, and in finishing the update of others."""

    in_step: Mapping[int, int] = {}
    in_finish: Mapping[int, int] = {}
    update_only: bool = True


def trainer_of(comm: Comm, options: Options) -> Trainer:
    plain: Options = {
        "data": "synthetic:1x4x4:3:96",
        "batch_size": 24,
        "epochs": 1,
        "optimizer": "adam",
        "clip_norm": 0.05,
    }
    return Trainer(Config(**plain | options), build, comm=comm)


def whole(owned: Sequence[SavedRange]) -> Rows:
    """Each part of a tensor, of which ranks have ranges; raises where a number is missing."""
    found: Rows = {}
    there: dict[Any, np.ndarray] = {}
    for one in owned:
        for name, array in {"": one.values, **one.sums}.items():
            key = one.place.path, one.place.part, name
            row = found.setdefault(key, np.zeros(one.place.size, array.dtype))
            row[one.lo : one.hi] = array
            there.setdefault(key, np.zeros(one.place.size, bool))[one.lo : one.hi] = True
    missing = [key for key, flags in there.items() if not flags.all()]
    assert not missing, f"no rank has all of {missing}"
    return found


def steps(trainer: Trainer) -> Iterator[Trainer]:
    """A Trainer before the first step, and after each."""
    trainer.model.train()
    yield trainer
    for result in trainer.strategy.steps(trainer.train, StepState()):
        if result.state.step == TORN:
            trainer.optimizer.betas = BETAS
        yield trainer


class Version(NamedTuple):
    """What a rank has after some steps of a run in which nobody is killed."""

    owned: tuple[SavedRange, ...]
    buffers: dict[str, np.ndarray]


def versions(comm: Comm, options: Options) -> list[Version]:
    """Those of this rank, from the one before the first step on."""
    return [
        Version(saved(trainer.part, trainer.optimizer), buffers(trainer))
        for trainer in steps(trainer_of(comm, options))
    ]


def buffers(trainer: Trainer) -> dict[str, np.ndarray]:
    """Copies of the buffers of the stages here."""
    named = trainer.part.model.named_buffers()
    return {path: array.copy() for path, array in named if trainer.part.held(path)}


def torn(comm: Comm, options: Options, deaths: Deaths) -> Left:
    """What this rank has when ranks are killed in a step."""
    trainer, die = trainer_of(comm, options), partial(threads.kill, comm)
    trainer.model.train()
    lines = Lines(deaths.in_step.get(comm.rank, 0), die)
    (in_update if deaths.update_only else in_step).set(lines)
    here = trainer.strategy.torn
    assert here is not None
    world, outcome = comm, None
    dying = Lines(deaths.in_finish.get(comm.rank, 0), die)
    try:
        for result in trainer.strategy.steps(trainer.train, StepState()):
            if result.state.step == TORN:
                trainer.optimizer.betas = BETAS
    except RankLost:
        world, outcome = finished(comm, here, dying)
    owned = saved(trainer.part, trainer.optimizer)
    for rank in here.lost(world.members):
        with here.in_place_of(rank):
            owned += saved(trainer.part, trainer.optimizer)
    return Left(here.version, outcome, owned, buffers(trainer), lines.count, dying.count)


def finished(comm: Comm, here: TornStep, dying: Lines) -> tuple[Comm, Outcome | None]:
    """The ranks that are left finish the step if they can; ranks may be lost in that, too."""
    world = comm
    while True:
        try:
            world = world.shrink()
            seen = SeenStep.joined(gather_objects(world, here.seen()))
            with dying.watched():
                outcome = here.finish(seen, world.members)
            world.barrier()
        except RankLost:
            continue
        here.undo()
        return world, outcome


in_step: ContextVar[Lines] = ContextVar("in_step")
in_update: ContextVar[Lines] = ContextVar("in_update")


def watched_run(self: Executor, load: Load, state: StepState, n: int, plain: Any) -> StepResult:
    """The step that is torn is watched."""
    lines = in_step.get(None) if state.step == TORN else None
    with lines.watched() if lines else nullcontext():
        found: StepResult = plain(self, load, state, n)
        return found


def watched_apply(self: Update, step: int, plain: Any) -> Outcome:
    """The update of the step that is torn is watched."""
    lines = in_update.get(None) if step == TORN else None
    with lines.watched() if lines else nullcontext():
        found: Outcome = plain(self, step)
        return found


@contextmanager
def cut_up(monkeypatch: Any, is_compiled: bool = False) -> Iterator[None]:
    """Within it blocks are short, and lines of updates are counted, those of kernels too."""
    with monkeypatch.context() as patch:
        patch.setattr(flat_buffer, "BLOCK_BYTES", 256)
        within = partial(torn_within, compiled=adam_loop.compiled) if is_compiled else None
        patch.setattr(adam_loop, "compiled", within)
        patch.setattr(scale_loop, "compiled", None)
        patch.setattr(Update, "apply", partialmethod(watched_apply, plain=Update.apply))
        patch.setattr(Executor, "run", partialmethod(watched_run, plain=Executor.run))
        yield
