"""What ranks held when they met to recover, and how many whole copies of the model that makes:
element by element, without the search of the program."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nnmpi.addons.recovery.parallel.backup import Version
from nnmpi.addons.recovery.run.rank_status import RankStatus
from nnmpi.nn.place import Range


class StatusTold(NamedTuple):
    """What a rank told the others in a recovery.

    lost   the ranks that were lost by then
    holds  its parts of versions, by version, session and renewal
    """

    turn: int
    rank: int
    lost: tuple[int, ...]
    status: RankStatus

    @property
    def holds(self) -> Mapping[tuple[int, int, int], Sequence[Range]]:
        parts = defaultdict[tuple[int, int, int], list[Range]](list)
        for held in self.status.holds:  # a backup and what the rank has itself may have one key
            parts[held.key] += ranges_of(held)
        return parts


def ranges_of(version: Version) -> list[Range]:
    """The ranges of arrays in a version."""
    return [x.range for x in version.arrays]


class WholeTensor(NamedTuple):
    """The shape of a parameter or buffer of the whole model, and its axes in memory order."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]


class Meeting(NamedTuple):
    """A recovery in which all remaining ranks told what they hold."""

    told: Sequence[StatusTold]
    tensors: Mapping[str, WholeTensor]

    @property
    def lost(self) -> tuple[int, ...]:
        """The ranks that were lost by then."""
        return self.told[0].lost

    @property
    def has_begun(self) -> bool:
        """True if some rank has made a step."""
        return any(told.status.step for told in self.told)

    @property
    def checkpoint(self) -> int:
        """The newest step that a rank knew to be in a checkpoint."""
        return max(told.status.checkpoint for told in self.told)

    def newest(self) -> int | None:
        """The newest version of which they had every element, or would have after the update of
        the last step, where one of them knew what was decided."""
        parts = dict[tuple[int, int, int], list[Range]]()
        known = max((t.status.decision[0] for t in self.told if t.status.decision), default=None)
        for told in self.told:
            for key, ranges in told.holds.items():
                parts.setdefault(key, []).extend(ranges)
            if known is not None and told.status.pending_version == known:
                head = told.status.holds[0]
                parts.setdefault((known, head.session, 0), []).extend(ranges_of(head))
        return max(
            (key[0] for key, ranges in parts.items() if self._is_whole(ranges)), default=None
        )

    def _is_whole(self, ranges: Iterable[Range]) -> bool:
        """True if these contain each element of the model."""
        found = {path: np.zeros(tensor.shape, bool) for path, tensor in self.tensors.items()}
        for held in ranges:
            if held.tensor in found:
                box = found[held.tensor][(*(slice(*ends) for ends in held.box), ...)]
                in_memory = box.transpose(self.tensors[held.tensor].axes)
                row = in_memory.reshape(-1).copy()
                row[held.lo : held.hi] = True
                in_memory[...] = row.reshape(in_memory.shape)
        return bool(found) and all(mask.all() for mask in found.values())


def meetings(
    told: Sequence[StatusTold], tensors: Mapping[str, WholeTensor], size: int
) -> list[Meeting]:
    """The recoveries in which every remaining rank told what it holds, in order."""
    latest = dict[tuple[int, ...], dict[int, StatusTold]]()
    for one in told:
        latest.setdefault(one.lost, {})[one.rank] = one
    return [
        Meeting([*of_rank.values()], tensors)
        for lost, of_rank in latest.items()
        if len(of_rank) == size - len(lost)
    ]
