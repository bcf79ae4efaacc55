"""Training: a Trainer as its loop and its recovery know it; functions that open its sessions.

Config, Given ─► prepare ─► Setup, RunState, Checkpoints ─► arrange ─► Session, on a Snapshot or not
                   ▲                                           ▲
                   └─ a loss before all ranks had that         └─ restore, a loss: fewer ranks
"""

import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import Any, NoReturn, Protocol, cast

from nnmpi.comm import Comm
from nnmpi.nn.graph import Graph
from nnmpi.options import terms
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.arrangement.fewer import Fewer
from nnmpi.parallel.refusals import why_not
from nnmpi.run.callbacks import check_callbacks, load_states
from nnmpi.run.checkpointing import Checkpoints
from nnmpi.run.checkpoints.read import Found, use_newest
from nnmpi.run.dropped import close_dropped
from nnmpi.run.footprint import Footprint
from nnmpi.run.loggers import loggers_of
from nnmpi.run.planning.planning import planned_run
from nnmpi.run.resume import Resumed, facts_of, goes_on, resumed_from
from nnmpi.run.run_state import RunState
from nnmpi.run.session import Session
from nnmpi.run.setup.cutting import Uncut, fitted
from nnmpi.run.setup.setup import Given, Setup, set_up
from nnmpi.run.snapshot import Snapshot
from nnmpi.run.text import samples
from nnmpi.run.trace import Tracer

COLLECTING = RLock()
"""Held by the rank that calls `gc.collect`, as ranks may be threads: that of a second one would
return at once, having collected nothing."""


class Training(Protocol):
    """A Trainer on one rank.

    given       what users have given, besides a config
    began       when it was made, by time.monotonic
    asked       how ranks were to be arranged, before any was lost
    fitted      which layout --elastic has chosen, and why, if it is another
    config      how they are arranged
    comm        of the ranks that are
    setup       what no arrangement changes
    run         how far it has come
    session     of these ranks; there is none after a restore that failed, and on a spare rank
    hears_steps whether a callback of some rank has on_step
    sampler     of --sample-every
    footprint   how this process grows since the session was opened
    graph       of the model, once this rank has had a session
    """

    given: Given
    began: float
    asked: Config
    fitted: str
    config: Config
    comm: Comm
    setup: Setup
    run: RunState
    session: Session
    callbacks: list[object]
    hears_steps: bool
    sampler: samples.Sampler | None
    checkpoints: Checkpoints
    tracer: Tracer
    footprint: Footprint
    graph: Graph | None


class NoModelError(AttributeError, ValueError):
    """A Trainer has no model, so it lacks attributes, and its methods refuse to do anything."""


class NoSession:
    """A stand-in for the session, after a restore that failed and on a spare rank."""

    is_closed = True

    def __init__(self, why: str) -> None:
        self._why = why

    def close(self) -> None:
        """There is nothing to give back."""

    end = close

    def __getattr__(self, name: str) -> NoReturn:
        raise NoModelError(f"this Trainer has no model {self._why}")


NO_SESSION = cast(Session, NoSession("since its last restore failed: restore a snapshot"))
SPARE = cast(
    Session,
    NoSession(
        "on this rank, which is spare: the layout has no place for it; it waits in fit, and takes "
        "part where another is lost; where trainer.is_spare, call nothing else"
    ),
)


def prepare(t: Training, config: Config, comm: Comm, ranks: int) -> None:
    """Loads data, and makes what no arrangement of so many ranks changes; every rank calls it."""
    t.setup = set_up(config, comm, t.given, ranks)
    config, given = t.setup.config, t.given.callbacks
    t.callbacks = all_or_none(comm, lambda: [*check_callbacks(given), *loggers_of(config)])
    hears_steps = any(hasattr(one, "on_step") for one in t.callbacks)
    t.hears_steps = any(gather_objects(comm, hears_steps))  # some rank does
    t.sampler = samples.agreed_sampler(comm, config, t.setup.dataset)
    t.run, t.comm = RunState(t.setup), comm
    t.run.read_every = (*_read_every(config, t.hears_steps),)
    t.asked = replace(t.asked, model=config.model)
    t.checkpoints = Checkpoints(config, t.run, t.began, partial(facts_of, t.setup), t.callbacks)
    close_dropped(comm)


def _read_every(config: Config, hears_steps: bool) -> Iterator[int]:
    """After so many steps each something reads the model, or what the last one has shown."""
    if hears_steps or config.verify:
        yield 1
    yield from filter(None, (config.sample_every, config.check_copies))
    every, unit = terms.interval(config.save_every) if config.save_every else (0, "")
    if unit == "steps":
        yield int(every)


# ---- sessions


def arrange(t: Training, config: Config, comm: Comm, snapshot: Snapshot | None) -> None:
    """Opens a session of these ranks; without a snapshot the first one of the run, on a checkpoint
    if the run goes on from one. Every rank of the Comm calls it."""
    if snapshot is None:
        given = t.given.resume
        directory = config.checkpoint_dir if given is None else os.fspath(given)

        def resume(one: Found) -> None:
            t.run.resume(_open_on(t, config, comm, one))

        if goes_on(config, directory, comm, resume):
            return
    _open(t, config, comm, snapshot)


def go_back(t: Training, config: Config, comm: Comm, lacks: str, were_spare: bool) -> None:
    """Opens a session on the newest checkpoint of this run. Where all ranks were spare, their
    callbacks get the states of then.

    Raises ValueError, with what memory `lacks`, where there is no checkpoint.
    """

    def use(one: Found) -> None:
        resumed = _open_on(t, config, comm, one)
        t.run.go_back(resumed)
        if were_spare:
            all_or_none(comm, lambda: load_states(t.callbacks, resumed.callbacks))

    directory = config.checkpoint_dir
    if directory is None or use_newest(directory, comm, use) is None:
        where = f"no checkpoint in {shown(directory)} has it" if directory else "no checkpoint"
        no_backup = t.asked.backup is not None or why_not("backup", t.asked, comm.size)
        remedy = "" if no_backup else "--backup or "
        shorter = "a shorter " if t.asked.save_every else ""
        raise ValueError(
            f"nothing is left to go on from: {where} ({lacks}); "
            f"{remedy}{shorter}--save-every keeps it"
        )


def load_callbacks(t: Training, comm: Comm, spare: int) -> None:
    """Gives callbacks their states, if the run goes on from a checkpoint; spare ranks, the last
    ones, hear of it. Every rank calls it."""
    if spare:
        first = gather_objects(comm, t.run.resumed)[0]
        if first is not None and t.session is SPARE:
            t.run.resume(first)
    if (resumed := t.run.resumed) is not None:
        all_or_none(comm, lambda: load_states(t.callbacks, resumed.callbacks))


def _open_on(t: Training, config: Config, comm: Comm, one: Found) -> Resumed:
    """Opens a session on a checkpoint."""
    resumed = all_or_none(comm, lambda: resumed_from(one, t.setup))
    _open(t, config, comm, resumed.snapshot)
    return resumed


def _open(t: Training, config: Config, comm: Comm, snapshot: Snapshot | None) -> None:
    """Arranges ranks as the config says; each of them calls it."""
    t.comm, config = comm, replace(config, model=t.setup.config.model)
    if config.plan is not None:
        t.run.plan = planned_run(t.setup, config, comm)
        options: dict[str, Any] = {"plan": None}
        if t.run.plan is not None:
            options |= {"memory": None, **t.run.plan.layout.options}
        config, t.asked = replace(config, **options), replace(t.asked, **options)
    t.footprint = Footprint()
    t.session = Session(t.setup, config, comm, t.run, t.tracer.recorder, snapshot, t.graph)
    t.config = config  # if it fails, `rearrange` needs that of before
    t.graph = t.session.arrangement.graph


def drop(t: Training, instead: Session = NO_SESSION) -> None:
    """Has no session, and nothing of the last one in memory."""
    t.session = instead
    with COLLECTING:
        gc.collect()  # a parameter and its store know each other


# ---- when ranks are lost


def wait(t: Training, comm: Comm) -> None:
    """This rank is spare, unless a session is opened."""
    t.comm = comm
    drop(t, SPARE)


def nearest_layout(t: Training, ranks: int) -> Fewer | None:
    """The nearest layout for so many ranks, if this rank knows the model."""
    if t.graph is None:
        return None
    known = t.asked, t.graph, t.setup.loss, t.setup.dataset, t.setup.metrics
    return fitted(t.asked, ranks, lambda: Uncut(*known))
