"""Snapshots: the state with which a run continues, possibly with other options."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from nnmpi.comm import Comm
from nnmpi.io.checkpoints.differences import check_resumable
from nnmpi.metrics import Sums
from nnmpi.nn.place import StateArray
from nnmpi.options.config import Config, options
from nnmpi.options.features import OPTIONS
from nnmpi.options.quoting import quoted
from nnmpi.parallel import strategies
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.division import UNIT_COSTS
from nnmpi.parallel.step.executor import StepState
from nnmpi.parallel.strategy import WorkerPosition

ARRANGEMENT_GROUPS = ("layout", "pipeline", "reduce", "sync", "equality")
"""The groups of options that determine how ranks are arranged; a resumed run may change these."""

COSTS_DEPEND_ON = (
    *("tp", "sequence_parallel", "layout", "device", "convolution"),
    *(option for part in OPTIONS.rows() for option in part.costs),
)
"""The options that change the measured cost per sample of the model's units."""


class Changes(NamedTuple):
    """Settings that callbacks have changed since the start of the run.

    options  the options of each parameter group of the optimizer
    frozen   the paths of parameters that were trainable at the start and no longer are
    """

    options: tuple[dict[str, Any], ...] = ()
    frozen: tuple[str, ...] = ()


class Snapshot(NamedTuple):
    """A copy of what one rank has between two steps, with which a run can continue. Options and
    counters are the same on all ranks; the whole state is in the `arrays` of all ranks together.

    measured   what was measured to place work on ranks, such as the costs of layers
    run        the first step of a call fit(epochs=N) and the step after its last, or None
    state      the step, epoch and batch reached
    skipped    the number of steps skipped because a value was not finite
    epoch      sums of loss and metrics over the steps of the epoch so far
    positions  the step that each worker has reached, if workers do not synchronize each step
    arrays     this rank's parts of model, optimizer state and loss scale
    norms      the sum of the gradient norms of the epoch so far, and their number; a checkpoint has
               them in RunFacts.pace
    """

    config: Config
    ranks: int
    measured: Mapping[str, Any]
    run: tuple[int, int] | None
    state: StepState
    skipped: int
    epoch: Sums
    positions: tuple[WorkerPosition, ...]
    changes: Changes
    arrays: tuple[StateArray, ...]
    norms: tuple[float, int] = (0.0, 0)

    def known(self, config: Config, ranks: int) -> Mapping[str, Any]:
        """Returns those entries of `measured` that stay valid with these options and ranks."""
        old, new = vars(self.config), vars(config)

        def same(names: Iterable[str]) -> bool:
            return all(old[name] == new[name] for name in names)

        costs = same(COSTS_DEPEND_ON)
        rest = ranks == self.ranks and same(option.name for option in options(ARRANGEMENT_GROUPS))
        return {k: v for k, v in self.measured.items() if (costs if k == UNIT_COSTS else rest)}


def joined(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Merges snapshots of several ranks, for a rank that takes over their work."""
    return snapshots[0]._replace(
        positions=tuple(position for snapshot in snapshots for position in snapshot.positions),
        arrays=tuple(x for snapshot in snapshots for x in snapshot.arrays),
    )


def changed(config: Config, changes: Mapping[str, Any], snapshot: Snapshot, ranks: int) -> Config:
    """Returns `config` with `changes`, for a run that continues from a snapshot; raises ValueError
    if an option must not change, or if the run cannot continue with it."""
    for name in changes:
        if name not in {option.name for option in options(ARRANGEMENT_GROUPS)}:
            raise ValueError(
                f"{quoted(name)} cannot be changed in a run; only options that arrange ranks can: "
                f"those of the groups {', '.join(ARRANGEMENT_GROUPS)}"
            )
    new = replace(config, **changes)
    check_resumable(vars(snapshot.config), vars(new), "the snapshot")
    strategies.check(new, ranks)
    return new


def next_steps(
    comm: Comm, positions: Sequence[WorkerPosition], workers: int
) -> tuple[StepState, ...]:
    """Returns the step from which each of `workers` asynchronous workers goes on; none if another
    number of them has saved the positions: each gets other parts of the batches. Every rank calls
    it."""
    of_all = chain.from_iterable(gather_objects(comm, positions))
    next_of = {position.worker: position.next for position in of_all if position.workers == workers}
    if len(next_of) < workers:
        return ()
    return tuple(next_of[w] for w in range(workers))
