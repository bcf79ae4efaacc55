"""Runs the pipeline stages of a rank: by replaying recorded passes where possible, otherwise by
modules and autograd. The log says for each stage which of these it is."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from nnmpi.arrays.backend import Backend
from nnmpi.parallel.step.ports import Stage
from nnmpi.parallel.step.stage_lists import StageLists

LITTLE = 1 << 24
"""Up to this many bytes, the memory of replays is kept between steps: binding replays to new memory
would take longer than a small step."""


class ReplayedStages:
    """Runs the pipeline stages of a rank: by replaying recorded passes where possible, otherwise by
    modules and autograd. For each stage, the run's log gets an entry that says whether its passes
    are replayed, and why not; and another entry if this changes.

    reason   why no stage may be replayed; None if they may be
    """

    def __init__(
        self,
        stages: Mapping[int, Stage],
        on: Backend,
        is_compared: bool,
        of_users: bool,
        on_node: int,
        reason: str | None,
        version: Callable[[], int],
        event: Callable[[dict[str, Any]], None],
    ) -> None:
        self._event, self._told = event, dict[int, str | None]()
        how = on, is_compared, of_users, on_node, version
        of_stages = Counter(p for stage in stages.values() for p in stage.parameters)
        self.lists = dict[int, StageLists]()
        for s, stage in stages.items():
            is_shared = any(of_stages[p] > 1 for p in stage.parameters)
            shared = "two stages of a rank share a parameter" if is_shared else None
            self.lists[s] = StageLists(stage, *how, partial(self._tell, s), reason or shared)

    def free(self) -> None:
        """Frees idle memory of replays, of stages that have more than 16 MiB."""
        for lists in self.lists.values():
            if lists.memory.size > LITTLE:
                lists.memory.clear()

    def _tell(self, s: int, lists: StageLists) -> None:
        """Logs that the passes of stage s are replayed now, or are not."""
        if lists.reason == self._told.get(s, "") or not (lists.reason or lists.compared):
            return
        self._told[s] = lists.reason
        rest = {"calls": lists.calls} if lists.reason is None else {"reason": lists.reason}
        about = {"stage": s, "replayed": lists.reason is None}
        self._event({"event": "passes", **about, **rest})
