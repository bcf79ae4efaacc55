"""Keeper: a rank's copies of the state, for a loss of ranks."""

from collections.abc import Iterator

import numpy as np

from nnmpi.addons.recovery.parallel.backup import Version, backups
from nnmpi.addons.recovery.run.run_counters import counters_now
from nnmpi.addons.recovery.run.versions import VersionFacts
from nnmpi.arrays import backend
from nnmpi.nn.state import assign
from nnmpi.run.session import Session


class Keeper:
    """Keeps a rank's versions of the training state in a session, as its attribute `kept`; every
    rank makes one. `number` is the number of the session, equal on all ranks."""

    def __init__(self, session: Session, number: int) -> None:
        self.number = number
        self._backups = backups(session.arrangement, session.state(), session.comm)
        if self._backups is not None:
            session.shared.callback(self._backups.close)
        # with parameter servers that may lose a worker: this rank's part of the last version that
        # all ranks have; servers update within an epoch and report at its end
        self._epoch_start: Version | None = None

    def begin_steps(self, session: Session) -> None:
        """Repeats the backup, since callbacks may have changed values, and with parameter servers
        keeps a copy of the state. Every rank calls it before the steps of an epoch."""
        if self._backups is not None:  # a callback, or a user between runs, may have changed values
            self._backups.renew(session.run.state.step, facts_of(session), session.state())
        self.keep_epoch_start(session)

    def back_up(self, session: Session) -> None:
        """Makes a backup if one is due; every rank calls it, after each step too."""
        if self._backups is not None:
            self._backups.after_step(session.run.state.step, facts_of(session), session.state())

    def keep_epoch_start(self, session: Session) -> None:
        """With parameter servers: copies the training state at the start of an epoch, from which
        the epoch begins again if a worker is lost. Every rank calls it."""
        if session.comm.fault_tolerant and session.strategy.layout.servers:
            _share_untrained(session)
            copies = tuple(x.copied() for x in session.state())
            step, facts = session.run.state.step, facts_of(session)
            self._epoch_start = Version(step, copies, facts, session=self.number)

    def backups(self) -> list[Version]:
        """Returns the backups of this rank and of others that it has."""
        held = self._backups.held() if self._backups is not None else []
        return [version._replace(session=self.number) for version in held]

    def versions(self, session: Session, copies: bool = False) -> Iterator[Version]:
        """Yields the versions of which this rank has arrays: the current one, backups, and the one
        at the start of the epoch. With `copies=False` the current one has the arrays in use."""
        start, last = self._epoch_start, session.strategy.last
        # otherwise an epoch with servers is under way, and some values are of later steps
        if start is None or start.version < session.run.state.step:
            facts = facts_of(session)
            version = max(facts.counters.state.step, last.version if last else 0)
            renewal = self._backups.renewal_of(version) if self._backups is not None else 0
            yield Version(version, session.snapshot(copies).arrays, facts, renewal, self.number)
        yield from self.backups()
        if start is not None:
            yield start


def facts_of(session: Session) -> VersionFacts:
    """Returns the facts about the current state that are equal on all ranks."""
    return VersionFacts(session.head(), counters_now(session.run))


def _share_untrained(session: Session) -> None:
    """Sends the buffers and frozen parameters of the first worker to the servers, so that they
    survive the loss of all workers."""
    trained = {v.path for v in session.arrangement.graph.variables if v.is_trained}
    for place, tensor in session.model.tensors():
        if place.path not in trained:
            values = np.array(backend.to_host(tensor.array), order="C")
            session.comm.broadcast(values)
            if session.strategy.layout.serves:
                assign(tensor, values)
