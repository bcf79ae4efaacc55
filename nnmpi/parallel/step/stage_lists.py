"""Runs the stages of a rank: by replays where possible, else by modules and autograd (the tape).

key        what decides which calls a pass makes: shapes of the inputs, attributes of modules, which
           parameters have a gradient already
recorded   the calls, for each key, after the first pass with this key (`recordable_stage.py`)
compared   the second pass runs by the tape and as a replay: both must have the same bits
Replay     runs them for one micro-batch; each micro-batch in flight has one, used again and again
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias, cast

from nnmpi.arrays.backend import Backend
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.arrays.meta.log import UnlikeError
from nnmpi.comm import Comm, OtherRankError
from nnmpi.data.inputs import parts
from nnmpi.nn.passes import LOCAL, BatchStats, Pass, ReplayStats
from nnmpi.nn.store import FlatStore
from nnmpi.nn.users_code import UnfitError
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.batch_stats import Synced
from nnmpi.parallel.step.beside_tape import Compared, ForwardBeside, NotedStats, RecalledStats
from nnmpi.parallel.step.buffers import Received
from nnmpi.parallel.step.channels import Inlet, Outlet
from nnmpi.parallel.step.ports import LossSink, Samples
from nnmpi.parallel.step.recordable_stage import MicroBatch, RecordableStage
from nnmpi.parallel.step.recorded_wires import NoNotes, Notes
from nnmpi.parallel.step.replay import Memory, Replay
from nnmpi.parallel.step.stage import PassState, Stage, StagePass, TapePass, by_tape, run_stage

MOST_LISTS = 16
"""The most recorded passes of a stage; with more, each seems to be another."""

LITTLE = 1 << 24
"""Up to this many bytes, the memory of replays is kept between steps: binding replays to new memory
would take longer than a small step."""

Acquire: TypeAlias = Callable[[], Replay]
"""Returns the Replay of a recorded pass that no micro-batch uses now."""


class ReplayedStages:
    """Runs the stages of a rank: by replaying recorded passes where possible, else by the tape. The
    log says for each stage which of these it is and why, once and when it changes."""

    def __init__(
        self,
        stages: Mapping[int, Stage],
        on: Backend,
        is_compared: bool,
        of_users: bool,
        on_node: int,
        tp: Comm,
        version: Callable[[], int],
        event: Callable[[dict[str, Any]], None],
    ) -> None:
        self._event, self._told = event, dict[int, str | None]()
        how = on, is_compared, of_users, on_node, tp, version
        of_stages = Counter(p for stage in stages.values() for p in stage.parameters)
        self.lists = dict[int, StageLists]()
        for s, stage in stages.items():
            is_shared = any(of_stages[p] > 1 for p in stage.parameters)
            shared = "two stages of a rank share a parameter" if is_shared else None
            self.lists[s] = StageLists(stage, *how, partial(self._tell, s), shared)

    def free(self) -> None:
        """Frees idle memory of replays, of stages that have more than 16 MiB."""
        for lists in self.lists.values():
            if lists.memory.size > LITTLE:
                lists.memory.clear()

    def _tell(self, s: int, lists: "StageLists") -> None:
        """Logs that the passes of stage s are replayed now, or are not."""
        if lists.reason == self._told.get(s, "") or not (lists.reason or lists.compared):
            return
        self._told[s] = lists.reason
        rest = {"calls": lists.calls} if lists.reason is None else {"reason": lists.reason}
        about = {"stage": s, "replayed": lists.reason is None}
        self._event({"event": "passes", **about, **rest})


class StageLists:
    """The recorded passes of a stage, one a key, and the choice between a replay and the tape.

    always_compared   True: every pass runs both ways, and the results are compared
    of_users          True: code outside of this library may be recorded too
    on_node           the number of ranks that share the memory of the node
    tp                the ranks that share layers: on GPUs they replay passes if all of them can
    compared          the keys of recorded passes that gave the same bits as the tape
    replays           the number of passes that ran as a replay only
    calls             the number of function calls in the longest recorded pass
    reason            why all passes run by the tape; None if they are replayed
    version           that of StepControl: if it changes, the stage is looked at again
    tell              (these lists): reports to the log whether passes are replayed
    """

    def __init__(
        self,
        stage: Stage,
        on: Backend,
        always_compared: bool,
        of_users: bool,
        on_node: int,
        tp: Comm,
        version: Callable[[], int],
        tell: Callable[["StageLists"], None],
        reason: str | None,
    ) -> None:
        self._version, self._tell, self._tp = version, tell, tp
        ways: tuple[Callable[[], Notes], Callable[[bool], bool]] = (Notes, bool)
        self._notes, self._agreed = ways if on.is_host else (NoNotes, self._agreed_over_tp)
        self._looked_at: int | None = None  # the version
        self._stage, self._on, self._always_compared = stage, on, always_compared
        self._recordable, self._seen = RecordableStage(stage, on, of_users, on_node), set[Any]()
        self._lists = dict[Any, Acquire | None]()
        self._of_stage: Any = None  # what decides which calls a pass makes, besides its micro-batch
        self._ready = dict[Any, Acquire]()  # by the key of the micro-batch
        self.compared, self.memory = set[Any](), Memory()
        self.reason, self.replays, self.calls = reason, 0, 0
        source, sink = stage.source, stage.sink
        if not (isinstance(source, Samples | Inlet) and isinstance(sink, LossSink | Outlet)):
            self.reason = "stages get their inputs in another way than by messages"
        if not all(isinstance(p.store, FlatStore) for p in stage.module.parameters()):
            self.reason = "a parameter has memory of its own, as frozen ones have"

    def run(self, state: PassState, number: int, current: Pass) -> Generator[None, None, StagePass]:
        """Runs the forward pass of micro-batch `number`, and returns a StagePass, which runs its
        backward pass. Yields between units. A recorded pass is replayed once it has given the
        bits of the tape."""
        if self._looked_at != self._version():
            self._look()
        if self.reason is not None:
            return (yield from self._refused(state, number, current))
        sink, stats = self._stage.sink, state.stats
        tensors = [t for _, t in parts(state.input)]
        arrays = [t.array for t in tensors]
        arrays += [sink.labels(number)] if isinstance(sink, LossSink) else []
        arrays.append(current.samples)
        # how many samples of a micro-batch other ranks have depends on its number
        at = None if _of_first_run(stats) is LOCAL else number
        key = current.batch, at, type(stats), state.kind, *((a.shape, a.dtype) for a in arrays)
        if (acquire := self._ready.get(key)) is None:
            return (yield from self._unready(key, MicroBatch(state, number, current, arrays)))
        replay = acquire()
        try:  # what raises comes before the first stop
            yield from replay.forward(arrays, current.step, stats)
        except UnlikeError:
            replay.free()
            return (yield from by_tape(self._stage, state, number, current))
        self.replays += 1
        replay.received = [t for t in tensors if isinstance(t, Received)]
        return replay

    def _look(self) -> None:
        """Looks whether the stage has changed, and which passes can be replayed."""
        self._looked_at = self._version()
        try:
            if self.reason is None and self._recordable.has_changed():
                self._recordable.look_again()
        except UnfitError as error:
            self.reason = str(error)
        if self.reason is None and (of_stage := self._recordable.key) != self._of_stage:
            self._of_stage, self._ready = of_stage, {}

    def _refused(
        self, state: PassState, number: int, current: Pass
    ) -> Generator[None, None, StagePass]:
        """Runs the forward pass of a micro-batch by modules and autograd, because of `reason`."""
        if self._lists:  # they are not needed any more
            self.memory.clear()
            self._lists, self._ready, self.memory = {}, {}, Memory()
        self._tell(self)
        return (yield from by_tape(self._stage, state, number, current))

    def _unready(self, key: Any, micro: MicroBatch) -> Generator[None, None, StagePass]:
        """Runs a forward pass whose `key` has no ready replay: the first one, or by the tape."""
        state, number, current, _ = micro
        first_run, whole_key = _of_first_run(state.stats), (self._of_stage, key)
        if not (first_run is LOCAL or isinstance(first_run, Synced)):
            self.reason = "passes that run slice by slice are not replayed yet"
        elif state.kind is None:
            self.reason = "steps overlap"
        if self.reason is not None:
            run: StagePass = yield from self._refused(state, number, current)
        elif whole_key in self.compared and not self._always_compared:
            acquire = self._lists[whole_key]
            assert acquire is not None
            self._ready[key] = acquire
            run = yield from self.run(state, number, current)
        elif self._on.is_host or whole_key in self._seen:
            run = self._beside_tape(whole_key, micro)
        else:  # kernels are compiled first
            self._seen.add(whole_key)
            run = yield from by_tape(self._stage, state, number, current)
        self._tell(self)
        return run

    def _beside_tape(self, key: Any, micro: MicroBatch) -> StagePass:
        """Runs a forward pass by the tape. The first one with this key is recorded after it has
        run, when the number of values that other ranks have for BatchNorm is known. Each later one
        also runs as a replay, and the results are compared."""
        notes, beside = self._notes(), None
        following: AbstractContextManager[None] = nullcontext()
        noted = NotedStats(micro.state.stats, notes)
        if (acquire := self._lists.get(key)) is not None:
            replay, stats = acquire(), RecalledStats(noted, notes)
            forward = replay.forward(micro.arrays, micro.current.step, stats)
            beside = ForwardBeside(replay, forward, self._recordable.buffers(), notes)
            following = self._stage.beside(beside.follow)
        current = micro.current._replace(batch_stats=noted)
        with following, notes.noting():
            root = run_stage(self._stage, micro.state, micro.number, current)
        on_tape = TapePass(self._stage, micro.state, root)
        if key not in self._lists:
            self._lists[key] = self._acquire_of(micro, [made.n for made in noted.moments_of])
        while beside is not None and beside.follow():
            pass
        if beside is None or not beside.is_alike:
            return on_tape
        same_forward = beside.is_same(on_tape.outputs)

        def ended(same: bool) -> None:
            if self._agreed(same and same_forward):
                self.compared.add(key)
            else:
                self.reason = self.reason or "a recorded pass has other bits than the tape"

        return Compared(on_tape, beside.replay, micro.state, self._stage, notes, ended)

    def _agreed_over_tp(self, same: bool) -> bool:
        """True if all ranks along tp pass True: their graphs wait for each other."""
        return all(gather_objects(self._tp, same))

    def _acquire_of(self, micro: MicroBatch, counts: Sequence[int]) -> Acquire | None:
        """Records or captures the pass of a micro-batch; returns what replays it, or sets
        `reason`."""
        if len(self._lists) == MOST_LISTS:
            self.reason = f"each of {MOST_LISTS} passes was another one"
            return None
        try:
            if not self._on.is_host:
                slots = all_or_none(self._tp, partial(self._recordable.captured, micro))
                self.calls = max(self.calls, slots.calls)
                return cast(Acquire, slots.acquire)
            planned = self._recordable.planned(micro, counts)
        except (NumbersReadError, OtherRankError) as error:
            self.reason = str(error)
            return None
        self.calls = max(self.calls, planned.calls)
        return partial(self.memory.acquire, planned)


def _of_first_run(stats: BatchStats) -> BatchStats:
    return stats.inner if isinstance(stats, ReplayStats) else stats
