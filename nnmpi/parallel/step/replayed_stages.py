"""Runs the pipeline stages of a rank: by replaying recorded passes where possible, otherwise by
modules and autograd. The log says for each stage which of these it is."""

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from typing import Any

from nnmpi.arrays.backend import Backend
from nnmpi.nn import Module
from nnmpi.nn.passes import Pass
from nnmpi.parallel.step.ports import PassState, Stage, StagePass
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
        stages: Mapping[int, Module],
        on: Backend,
        is_compared: bool,
        of_users: bool,
        on_node: int,
        reason: str | None,
        event: Callable[[dict[str, Any]], None],
    ) -> None:
        self._how = on, is_compared, of_users, on_node
        self._reason, self._event = reason, event
        self._numbers = {id(module): s for s, module in stages.items()}
        self.lists, self._told = dict[int, StageLists](), dict[int, str | None]()
        of_stages = Counter(p for module in stages.values() for p in {*module.parameters()})
        self._shared = {p for p, count in of_stages.items() if count > 1}

    def __call__(
        self, stage: Stage, state: PassState, micro: int, current: Pass
    ) -> Generator[None, None, StagePass]:
        """Runs the forward pass of micro-batch `micro` through a stage, and returns a StagePass to
        run its backward pass. Yields between units (usually layers). The input is `state.input`;
        `current` is the Pass, whose step and samples determine the random numbers."""
        lists = self.lists.get(id(stage.module))
        if lists is None:
            lists = self.lists[id(stage.module)] = self._lists_of(stage)
        run = yield from lists.run(state, micro, current)
        if lists.reason != self._told.get(id(stage.module), "") and (
            lists.reason or lists.compared
        ):
            self._tell(stage, lists)
        return run

    def free(self) -> None:
        """Frees the memory of replays (recorded passes) that no micro-batch uses now, for each
        stage that has more than 16 MiB of it."""
        for lists in self.lists.values():
            if lists.memory.size > LITTLE:
                lists.memory.clear()

    def _lists_of(self, stage: Stage) -> StageLists:
        is_shared = not self._shared.isdisjoint(stage.module.parameters())
        reason = "two stages of a rank share a parameter" if is_shared else None
        return StageLists(stage, *self._how, self._reason or reason)

    def _tell(self, stage: Stage, lists: StageLists) -> None:
        self._told[id(stage.module)] = lists.reason
        about = {"stage": self._numbers[id(stage.module)], "replayed": lists.reason is None}
        rest = {"calls": lists.calls} if lists.reason is None else {"reason": lists.reason}
        self._event({"event": "passes", **about, **rest})
