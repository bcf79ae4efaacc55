"""KeptVersions: a rank's copies of the state from session to session."""

from collections.abc import Iterable, Sequence

import numpy as np

from nnmpi.addons.recovery.parallel.backup import Version
from nnmpi.addons.recovery.run.rank_status import RankStatus, RecoveryPlan
from nnmpi.addons.recovery.run.run_counters import counters_of
from nnmpi.addons.recovery.run.survivors import Survivors
from nnmpi.addons.recovery.run.versions import VersionFacts, spare_transfers
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.nn.place import StateArray
from nnmpi.parallel.agreement import all_or_none
from nnmpi.run.run_state import RunState
from nnmpi.run.session import Session


class KeptVersions:
    """Copies of the state of earlier sessions, and snapshots for the next."""

    def __init__(self) -> None:
        self._by_key = dict[tuple[int, int, int], Version]()

    def keep(self, versions: Iterable[Version]) -> None:
        """Adds versions, or arrays to those stored already."""
        for version in versions:
            known = self._by_key.setdefault(version.key, version)
            if known is not version:  # a backup of the same version also has parts of other ranks
                more = {x.range: x for x in (*version.arrays, *known.arrays)}
                self._by_key[version.key] = known._replace(arrays=[*more.values()])

    def keep_snapshot(self, run: RunState, snapshot: Snapshot, number: int) -> None:
        """Adds a snapshot, from which the session with this `number` is made."""
        step, counters = snapshot.state.step, counters_of(run, snapshot)
        counters = counters._replace(first_step=step, restored=(*counters.restored, step))
        facts = VersionFacts(snapshot._replace(arrays=()), counters)
        kept = Version(step, snapshot.arrays, facts, session=number)
        self._by_key[kept.key] = kept

    def all(self) -> Iterable[Version]:
        """Returns all versions of the training state that this rank has stored."""
        return self._by_key.values()

    def arrays_of(self, version: Version) -> tuple[StateArray, ...]:
        """Returns the arrays that this rank has stored of a version of the training state."""
        kept = self._by_key.get(version.key)
        return tuple(kept.arrays) if kept else ()

    def clear(self) -> None:
        """Deletes all kept copies of the training state."""
        self._by_key.clear()

    def leave(self, session: Session, plan: RecoveryPlan) -> None:
        """Adds the versions that a session has, for the next one, and abandons the session. If the
        plan says so, the update of the interrupted step is made first."""
        source, last = plan.source, session.strategy.last
        if last is not None:
            if (
                source
                and plan.makes_step
                and plan.decision
                and source.version == last.pending_version
            ):
                last.finish(plan.decision[1])
            last.restore()
        self.keep(session.kept.versions(session, copies=True))
        session.leave()

    def snapshot(
        self,
        plan: RecoveryPlan,
        statuses: Sequence[RankStatus],
        survivors: Survivors,
        working: int,
    ) -> Snapshot | None:
        """Returns the parts of `plan.source` that this rank's next session is made from; None if
        the plan continues from initial values or a checkpoint. Spare ranks send what only they have
        to ranks that will train, the first `working` ones. Every remaining rank calls it."""
        if (source := plan.source) is None:
            return None
        owned = self.arrays_of(source)
        decision = plan.decision if plan.makes_step else None
        holds = [status.can_hold(decision) for status in statuses]
        transfers = spare_transfers(holds, source, working)
        head: Snapshot = source.about.head
        return head._replace(arrays=(*owned, *survivors.exchange(transfers, owned)))

    def check_initial(self, session: Session) -> None:
        """Raises ValueError if a run that has to begin again after the loss of a rank has other
        initial parameter values than the first time. Every rank calls it."""
        initial = {x.range: x for x in session.state()}

        def check() -> None:
            for kept in (x for v in self.all() if not v.version for x in v.arrays):
                here = initial.get(kept.range)
                if here is not None and not np.array_equal(here.elements(), kept.elements()):
                    raise ValueError(
                        f"{kept.name} was changed before the first step, and a lost rank had a "
                        "part of the model, so the run cannot begin again"
                    )

        all_or_none(session.comm, check)
