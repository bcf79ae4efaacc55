"""Marks: places in the program that ranks pass, and from which faults count."""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import pytest

from nnmpi.addons.averaging.rounds import Rounds
from nnmpi.addons.checkpoints.checkpointing import RunCheckpoints
from nnmpi.addons.checkpoints.write import Writer
from nnmpi.addons.recovery.parallel.backup import Backups
from nnmpi.addons.recovery.run.rank_status import RankStatus
from nnmpi.addons.recovery.run.recovery import Recovery
from nnmpi.addons.recovery.run.survivors import Survivors
from nnmpi.addons.servers.exchange import RequestChannel
from nnmpi.comm import Comm
from nnmpi.comm.calls import CallRunner
from nnmpi.parallel.model.state import model_tensors
from nnmpi.parallel.step.update import Update
from nnmpi.run.run_state import RunState
from nnmpi.run.session import Session
from nnmpi.run.trainer import Trainer
from nnmpi.run.training import Training
from simulation.held import StatusTold, WholeTensor
from simulation.scheduler import HERE


class MarkedMethod(NamedTuple):
    """A method with the marks before and after it."""

    owner: type
    name: str
    before: str
    after: str = ""


AGREED = (
    MarkedMethod(Update, "_agreed", "deciding", "decided"),
    MarkedMethod(Rounds, "_met", "meeting", "met"),
    MarkedMethod(RequestChannel, "ask", "asking", "answered"),
    MarkedMethod(CallRunner, "agree", "agreeing", "agreed"),
    MarkedMethod(Comm, "confirm", "confirming"),
)
AGREEMENTS = {name: m.before for m in AGREED for name in (m.before, m.after) if name}
"""The marks before and after agreements of ranks, each with the one before."""

MARKED = (
    MarkedMethod(Recovery, "_recover", "recovering", "recovered"),
    MarkedMethod(Recovery, "_arrange_all", "arranging", "arranged"),
    MarkedMethod(Backups, "_finish", "backing up", "backed up"),
    MarkedMethod(Writer, "start", "writing"),
    MarkedMethod(Writer, "_commit", "committing", "written"),
    MarkedMethod(RunCheckpoints, "suspend", "suspending"),
    MarkedMethod(Trainer, "restore", "restoring", "restored"),
    MarkedMethod(Survivors, "wait", "waiting"),
    MarkedMethod(RunState, "stop_here", "agrees to stop", "stopping"),
    MarkedMethod(Session, "evaluate", "evaluating", "evaluated"),
    MarkedMethod(Update, "apply", "updating", "updated"),
    *AGREED,
)


def marked(patch: pytest.MonkeyPatch) -> None:
    """Lets these methods pass their marks."""
    for method in MARKED:
        plain = getattr(method.owner, method.name)
        patch.setattr(method.owner, method.name, _with_marks(plain, method.before, method.after))
    patch.setattr(Recovery, "_status", _noting_status(Recovery._status))
    patch.setattr(Recovery, "_open", _noting_tensors(Recovery._open))


def _with_marks(plain: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
    @wraps(plain)
    def method(*arguments: Any, **options: Any) -> Any:
        here = HERE.get()
        if here is None:
            return plain(*arguments, **options)
        here.scheduler.mark(before, here.rank)
        result = plain(*arguments, **options)
        if after:
            here.scheduler.mark(after, here.rank)
        return result

    return method


def _noting_status(plain: Callable[..., RankStatus]) -> Callable[..., RankStatus]:
    """Notes what a rank tells the others when they meet."""

    @wraps(plain)
    def status(recovery: Recovery, trainer: Training) -> RankStatus:
        told, here = plain(recovery, trainer), HERE.get()
        if here is not None:
            lost, turn = recovery.survivors.all.lost, len(here.scheduler.trace)
            here.scheduler.told.append(StatusTold(turn, here.rank, lost, told))
        return told

    return status


def _noting_tensors(plain: Callable[..., None]) -> Callable[..., None]:
    """Notes of which tensors the whole model is, when the first session is open."""

    @wraps(plain)
    def opened(recovery: Recovery, trainer: Training, *arguments: Any) -> None:
        plain(recovery, trainer, *arguments)
        here = HERE.get()
        if here is not None and not here.scheduler.tensors:
            for x in model_tensors(trainer.session.model):
                here.scheduler.tensors[x.name] = WholeTensor(x.place.shape, x.axes)

    return opened
