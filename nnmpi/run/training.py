"""Training: what is made of what users give a Trainer, and made again when ranks are lost.

Config, Given ─► set_up ─► Setup, RunState, Saves ─► arrange ─► Session, on a Snapshot or not
                   ▲                                    ▲
                   └─ a loss before all ranks had that  └─ restore, a loss: fewer ranks
"""

import gc
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import Any, NoReturn, cast

from nnmpi.comm import Comm
from nnmpi.nn.graph import Graph
from nnmpi.options import terms
from nnmpi.options.config import Config
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.arrangement.fewer import Fewer
from nnmpi.run.callbacks import check_callbacks, load_states
from nnmpi.run.checkpoints.read import Found, use_newest
from nnmpi.run.dropped import close_dropped
from nnmpi.run.footprint import Footprint
from nnmpi.run.loggers import loggers_of
from nnmpi.run.planning.planning import planned_run
from nnmpi.run.resume import Resumed, facts_of, goes_on, resumed_from
from nnmpi.run.run_state import RunState
from nnmpi.run.saves import Saves
from nnmpi.run.session import Session
from nnmpi.run.setup.cutting import Uncut, fitted
from nnmpi.run.setup.optimizers import optimizer_of
from nnmpi.run.setup.setup import Given, set_up
from nnmpi.run.snapshot import Snapshot
from nnmpi.run.text import samples
from nnmpi.run.trace import Tracer

COLLECTING = RLock()
"""Held by the rank that calls `gc.collect`, as ranks may be threads: that of a second one would
return at once, having collected nothing."""


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


class Training:
    """The parts of a Trainer on one rank. It knows neither the Trainer nor what ranks were lost.

    asked    how ranks were to be arranged, before any was lost
    config   how they are arranged
    comm     of the ranks that are
    session  of these ranks; there is none after a restore that failed, and on a spare rank
    run      how far it has come
    footprint  how this process grows since the session was opened
    """

    comm: Comm
    session: Session = NO_SESSION
    run: RunState = cast(RunState, None)  # before it is set up
    footprint: Footprint = cast(Footprint, None)  # before a session is opened
    why = ""  # of the layout that --elastic has chosen, if it is not the one that was asked for
    _graph: Graph | None = None

    def __init__(self, config: Config, given: Given) -> None:
        self.config = self.asked = config
        self._given, self._began = given, time.monotonic()

    def set_up(self, config: Config, comm: Comm, ranks: int) -> None:
        """Loads data, and makes what no arrangement of so many ranks changes; every rank calls
        it."""
        setup, callbacks = set_up(config, comm, self._given, ranks), self._given.callbacks
        self.callbacks = all_or_none(
            comm, lambda: [*check_callbacks(callbacks), *loggers_of(config)]
        )
        hears_steps = any(hasattr(one, "on_step") for one in self.callbacks)
        self.hears_steps = any(gather_objects(comm, hears_steps))  # some rank does
        self.sampler = samples.agreed_sampler(comm, setup.config, setup.dataset)
        self.setup, self.run = setup, RunState(setup)
        self.run.read_every = (*self._read_every(setup.config),)
        self.comm = self._tracer_comm = comm
        self.tracer = Tracer(setup.config, comm)
        self.asked = replace(self.asked, model=setup.config.model)
        facts = partial(facts_of, setup)
        self.saves = Saves(setup.config, self.run, self._began, facts, self.callbacks)
        close_dropped(comm)

    def _read_every(self, config: Config) -> Iterator[int]:
        """After so many steps each something reads the model, or what the last one has shown."""
        if self.hears_steps or config.verify:
            yield 1
        if self.sampler is not None:
            yield self.sampler.every
        if config.check_copies:
            yield config.check_copies
        if config.save_every:
            every, unit = terms.interval(config.save_every)
            if unit == "steps":
                yield int(every)

    # ---- sessions

    def arrange(self, config: Config, comm: Comm, snapshot: Snapshot | None) -> None:
        """Opens a session of these ranks; without a snapshot the first one of the run, on a
        checkpoint if the run goes on from one. Every rank of the Comm calls it."""
        if snapshot is not None:
            self._open(config, comm, snapshot)
            return
        given = self._given.resume
        directory = config.checkpoint_dir if given is None else os.fspath(given)
        if not goes_on(config, directory, comm, partial(self._resume, config, comm)):
            self._open(config, comm, None)

    def go_back(self, config: Config, comm: Comm, were_spare: bool) -> bool:
        """Opens a session on the newest checkpoint of this run; returns whether there is one. Where
        all ranks were spare, their callbacks get the states of then."""

        def use(found: Found) -> None:
            resumed = self._open_on(config, comm, found)
            self.run.go_back(resumed)
            if were_spare:
                all_or_none(comm, lambda: load_states(self.callbacks, resumed.callbacks))

        directory = config.checkpoint_dir
        return directory is not None and use_newest(directory, comm, use) is not None

    def _resume(self, config: Config, comm: Comm, found: Found) -> None:
        """The run goes on from a checkpoint."""
        self.run.resume(self._open_on(config, comm, found))

    def load_callbacks(self, comm: Comm, spare: int) -> None:
        """Gives callbacks their states, if the run goes on from a checkpoint; spare ranks, the last
        ones, hear of it. Every rank calls it."""
        if spare:
            first = gather_objects(comm, self.run.resumed)[0]
            if first is not None and self.session is SPARE:
                self.run.resume(first)
        if (resumed := self.run.resumed) is not None:
            all_or_none(comm, lambda: load_states(self.callbacks, resumed.callbacks))

    def _open_on(self, config: Config, comm: Comm, found: Found) -> Resumed:
        """Opens a session on a checkpoint."""
        resumed = all_or_none(comm, lambda: resumed_from(found, self.setup))
        self._open(config, comm, resumed.snapshot)
        return resumed

    def _open(self, config: Config, comm: Comm, snapshot: Snapshot | None) -> None:
        """Arranges ranks as the config says; each of them calls it."""
        if comm is not self._tracer_comm:
            optimizer = optimizer_of(config, self._given.optimizer, comm)
            self.setup = self.setup._replace(make_optimizer=optimizer)
            self.tracer, self._tracer_comm = Tracer(config, comm), comm
        self.comm, config = comm, replace(config, model=self.setup.config.model)
        if config.plan is not None:
            self.run.plan = planned_run(self.setup, config, comm)
            options: dict[str, Any] = {"plan": None}
            if self.run.plan is not None:
                options |= {"memory": None, **self.run.plan.layout.options}
            config, self.asked = replace(config, **options), replace(self.asked, **options)
        recorder, self.footprint = self.tracer.recorder, Footprint()
        self.session = Session(self.setup, config, comm, self.run, recorder, snapshot, self._graph)
        self.config = config  # if it fails, `rearrange` needs that of before
        self._graph = self.session.arrangement.graph

    def drop(self, instead: Session = NO_SESSION) -> None:
        """Has no session, and nothing of the last one in memory."""
        self.session = instead
        with COLLECTING:
            gc.collect()  # a parameter and its store know each other

    # ---- when ranks are lost

    def wait(self, comm: Comm) -> None:
        """This rank is spare, unless a session is opened."""
        self.comm = comm
        self.drop(SPARE)

    def fitted(self, ranks: int) -> Fewer | None:
        """The nearest layout for so many ranks, if this rank knows the model."""
        if self._graph is None:
            return None
        setup = self.setup
        known = self.asked, self._graph, setup.loss, setup.dataset, setup.metrics
        return fitted(self.asked, ranks, lambda: Uncut(*known))
