"""A machine that carries out the lists of all ranks with symbols in the place of arrays, and says
what a step has computed; it shares no rule with the proof.

Collectives match by the order of calls on their Comm, as those of MPI do, and are complete when all
of its ranks have called them. What a rank reads while it arrives, or writes while it is sent, is
wrong; so is a slot that two buckets use at a time.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from nnmpi.parallel.step_list.gradients import gradient_slots
from nnmpi.schedules.lists.step_list import StepList
from nnmpi.schedules.op import ADDS, FORWARD, NONE, PASSES, RECEIVES, SENDS, Kind, Op

Rank: TypeAlias = tuple[int, int]
"""Its places along pp and dp."""

Groups: TypeAlias = Sequence[Sequence[StepList]]


class WrongError(Exception):
    """What a list does that no right list does."""


class Call(NamedTuple):
    """A collective that a rank has called: the Comm, and which of its calls it is."""

    comm: tuple[object, ...]
    number: int


class Wires:
    """The Comms of all ranks, and the messages between stages."""

    def __init__(self, groups: Groups) -> None:
        self.members = defaultdict[tuple[object, ...], list[Rank]](list)
        for p, row in enumerate(groups):
            for d, step in enumerate(row):
                tied = () if step.scatters else {*step.chain.tied.values()}
                ties = [("ties", d)] if Op(Kind.TIES) in step.ends else []
                of_tied = (("tied", v) for v in tied)
                for comm in (("sums", p), ("gathers", p), ("all",), *ties, *of_tied):
                    self.members[comm].append((p, d))
        self._calls = defaultdict[tuple[Any, Rank], list[tuple[object, object]]](list)
        self.sent = defaultdict[tuple[object, ...], list[int]](list)
        self.slices = defaultdict[tuple[int, int, int], list[list[object]]](list)

    def call(self, me: Rank, comm: tuple[object, ...], what: object, given: object) -> Call:
        calls = self._calls[comm, me]
        calls.append((what, given))
        for rank in self.members[comm]:
            of_other = self._calls[comm, rank]
            if len(of_other) >= len(calls) and of_other[len(calls) - 1][0] != what:
                raise WrongError(f"{comm}: {what} meets {of_other[len(calls) - 1][0]}")
        return Call(comm, len(calls) - 1)

    def is_complete(self, call: Call) -> bool:
        return all(len(self._calls[call.comm, r]) > call.number for r in self.members[call.comm])

    def given(self, call: Call) -> tuple[object, ...]:
        ranks = self.members[call.comm]
        return tuple(self._calls[call.comm, rank][call.number][1] for rank in ranks)


class RankMachine:
    """One rank: `run` stops where it waits for others."""

    def __init__(self, step: StepList, me: Rank, wires: Wires) -> None:
        self._step, self._me, self._wires, self._chain = step, me, wires, step.chain
        self._grad_slots = gradient_slots(step.chain) if step.scatters else {}
        self._version, self._there = 0, dict[int, int]()
        self._moving = dict[int, Call]()
        for b in step.begins:
            self._gather(Op(Kind.GATHER, at=b))
        self._added = defaultdict[int, list[tuple[int, int]]](list)
        self._open, self._flying = dict[int, int](), dict[tuple[int, int, int], Call]()
        self._made = defaultdict[Kind, set[tuple[int, int]]](set)
        self._received = defaultdict[tuple[object, ...], list[int]](list)
        self.sums = defaultdict[int, list[object]](list)
        self._has_slices = any(op.kind is Kind.PUSH for op in step.ops)
        self._stack = list[list[object]]()  # of gradients: what was added to each
        self._taken = Counter[int]()  # sums of slices that came from a rank along dp
        self._unused = list[int]()  # micro-batches, of whose gradients no update was made
        self.results = dict[str, object]()
        self._agreed: object = None

    def run(self) -> Iterator[None]:
        """Yields while another rank has to go on first."""
        for op in self._step.ops:
            ready = self._ready(op)
            while not ready():
                yield
            self._do(op)
        if {*self._moving} != {*self._step.begins} or self._flying or self._open:
            raise WrongError("the step ends within something")

    def _ready(self, op: Op) -> Callable[[], bool]:
        complete = self._wires.is_complete
        if op.kind in PASSES:
            return lambda: self._has_message(op)
        if op.kind is Kind.RECV_SUM:
            return lambda: len(self._sums_from(op.peer)) > self._taken[op.peer]
        if op.kind in (Kind.WAIT, Kind.FINISH):
            of_sum = self._flying.get((op.at, op.micro, op.slot))
            call = self._moving.get(op.at) if op.kind is Kind.WAIT else of_sum
            if call is None:
                raise WrongError(f"{op}: nothing is under way")
            return lambda: complete(call)
        if op.kind in (Kind.TIES, Kind.AGREE):
            buckets = () if self._step.scatters else range(len(self._chain.lengths))
            if self._flying or self._open or not {*buckets} <= {*self.sums}:
                raise WrongError(f"{op}: sums are not there")
            comm = ("all",) if op.kind is Kind.AGREE else ("ties", self._me[1])
            tied = {} if op.kind is Kind.AGREE else self._chain.tied
            sums = sorted((v, (*self.sums.get(b, ()),)) for b, v in tied.items())
            what = op.kind, *(v for v, _ in sums)
            call = self._wires.call(self._me, comm, what, tuple(sums))
            return lambda: complete(call)
        return lambda: True

    def _do(self, op: Op) -> None:
        if op.kind in PASSES:
            self._pass(op)
        elif op.kind in RECEIVES:
            self._received[op.kind, op.at].append(op.micro)
        elif op.kind in SENDS:
            self._send(op)
        elif op.kind is Kind.NOTE and self._has_slices:
            self._stack[-1].append(frozenset(self._made[Kind.F]))
            self.results["losses"] = True
        elif op.kind is Kind.NOTE:
            self._keep("losses", frozenset(self._made[Kind.F]))
        elif op.kind in (Kind.TIES, Kind.TERMS):
            self._keep(op.kind.value, self._summed())
        elif op.kind is Kind.AGREE:
            self._agreed = self._summed()
            self._keep("agreed", self._agreed)
        elif op.kind is Kind.APPLY and self._step.overlaps:
            self._apply_each(op)
        elif op.kind is Kind.APPLY:
            self._apply()
        else:
            acts: Mapping[Kind, Callable[[Op], None]] = {
                Kind.GATHER: self._gather,
                Kind.WAIT: self._wait,
                Kind.OPEN: self._open_bucket,
                Kind.SUM: self._sum,
                Kind.FINISH: self._finish,
                Kind.PUSH: lambda op: self._stack.append([]),
                Kind.ADD: self._add_slices,
                Kind.SEND_SUM: self._send_slices,
                Kind.RECV_SUM: self._receive_slices,
            }
            acts[op.kind](op)

    def _keep(self, name: str, what: object) -> None:
        if name in self.results:
            raise WrongError(f"{name} twice")
        self.results[name] = what

    # ---- passes and messages

    def _message(self, op: Op, away: int) -> tuple[object, ...] | None:
        """The key of the message from the unit before or after; None if it is on this rank."""
        _, boundary = self._chain.neighbours(op.at, away)
        if boundary == NONE or op.kind in (Kind.W, Kind.RECOMPUTE):
            return None
        return (Kind.RECV_F if away < 0 else Kind.RECV_B), boundary

    def _has_message(self, op: Op) -> bool:
        key = self._message(op, -1 if op.kind is Kind.F else +1)
        if key is None:
            return True
        if op.micro not in self._received[key]:
            raise WrongError(f"{op}: its message was not asked for")
        sent = self._wires.sent[*key, self._me[1]]
        k = self._received[key].index(op.micro)
        if len(sent) > k and sent[k] != op.micro:
            raise WrongError(f"{op}: gets the message of micro-batch {sent[k]}")
        return len(sent) > k

    def _pass(self, op: Op) -> None:
        key, made = (op.at, op.micro), self._made
        for b in self._chain.read_by(op) if self._step.slots else ():
            if self._there.get(self._step.slots[b]) != b:
                raise WrongError(f"{op}: bucket {b} is not there")
        if (key in made[op.kind] and op.kind is not Kind.RECOMPUTE) or (
            op.kind is not Kind.F and key not in made[Kind.F]
        ):
            raise WrongError(f"{op}: has run, or nothing has come before")
        if op.kind in FORWARD or op.kind in (Kind.B, Kind.I):
            of_neighbour = made[Kind.F] if op.kind in FORWARD else made[Kind.B] | made[Kind.I]
            unit, _ = self._chain.neighbours(op.at, -1 if op.kind in FORWARD else +1)
            if unit != NONE and (unit, op.micro) not in of_neighbour:
                raise WrongError(f"{op}: unit {unit} has not run")
        if op.kind is Kind.W and key not in made[Kind.I]:
            raise WrongError(f"{op}: comes before the gradient of the input")
        made[op.kind].add(key)
        if self._step.overlaps and op.kind is Kind.F:
            self._keep(f"weights of {op.micro}", self._version)
        elif self._step.overlaps and self._unused:
            raise WrongError(f"{op}: adds to the gradients of {self._unused}")
        self._unused += [op.micro] * (op.kind in ADDS)
        for b in self._chain.units[op.at].buckets if op.kind in ADDS else ():
            if self._step.scatters and b not in self._open:
                raise WrongError(f"{op}: bucket {b} is not open")
            if not self._step.scatters and b in self._in_sums():
                raise WrongError(f"{op}: bucket {b} is summed")
            (self._stack[-1] if self._has_slices else self._added[b]).append(key)

    def _send(self, op: Op) -> None:
        is_forward = op.kind is Kind.SEND_F
        units = self._chain.of_stage
        unit = units[op.at - 1][-1] if is_forward else units[op.at][0]
        kinds = (Kind.F,) if is_forward else (Kind.B, Kind.I)
        if not any((unit, op.micro) in self._made[kind] for kind in kinds):
            raise WrongError(f"{op}: it is not there")
        way = Kind.RECV_F if is_forward else Kind.RECV_B
        sent = self._wires.sent[way, op.at, self._me[1]]
        if op.micro in sent:
            raise WrongError(f"{op}: is sent twice")
        sent.append(op.micro)

    # ---- values

    def _comm_of(self, b: int, plain: str) -> tuple[object, ...]:
        shares = len({*self._step.slots.values()}) < len(self._step.slots)
        if b in self._chain.tied and not self._step.scatters and not (shares and plain != "sums"):
            return "tied", self._chain.tied[b]
        return plain, self._me[0]

    def _gather(self, op: Op) -> None:
        slots = self._step.slots
        if any(slots[b] == slots[op.at] for b in self._moving):
            raise WrongError(f"{op}: something is arriving there")
        self._there.pop(slots[op.at], None)
        what = "gather", self._chain.tied.get(op.at, f"bucket {op.at}")
        comm = self._comm_of(op.at, "gathers")
        self._moving[op.at] = self._wires.call(self._me, comm, what, self._version)

    def _wait(self, op: Op) -> None:
        versions = {*self._wires.given(self._moving.pop(op.at))}
        if versions != {self._version}:
            raise WrongError(f"{op}: brings versions {versions}")
        self._there[self._step.slots[op.at]] = op.at

    # ---- gradients

    def _in_sums(self) -> set[int]:
        """The buckets whose sums have begun."""
        return {*self.sums, *(b for b, *_ in self._flying)}

    def _memories(self) -> list[int]:
        """The slots of gradients that are in use."""
        return [self._grad_slots[b] for b in (*self._open, *(b for b, *_ in self._flying))]

    def _open_bucket(self, op: Op) -> None:
        if self._grad_slots[op.at] in self._memories():
            raise WrongError(f"{op}: its memory is in use")
        self._open[op.at] = op.micro

    def _sum(self, op: Op) -> None:
        if self._step.scatters and self._open.pop(op.at, None) is None:
            raise WrongError(f"{op}: is not open")
        if not self._step.scatters and op.at in self._in_sums():
            raise WrongError(f"{op}: is summed twice")
        given: tuple[object, ...] = (*self._added[op.at],)
        if self._has_slices:
            given = (*map(tuple, self._stack),)
        elif not self._step.scatters and op.at == 0:  # says what was used, and has the loss
            used = frozenset(b for b, added in self._added.items() if added)
            given = (*given, used, self.results.get("losses"))
        if self._step.scatters:
            self._added[op.at].clear()
        what = "sum", op.micro, self._chain.tied.get(op.at, f"bucket {op.at}")
        call = self._wires.call(self._me, self._comm_of(op.at, "sums"), what, given)
        self._flying[op.at, op.micro, op.slot] = call

    def _finish(self, op: Op) -> None:
        call = self._flying.pop((op.at, op.micro, op.slot))
        self.sums[op.at].append(self._wires.given(call))

    # ---- sums along a tree of slices

    def _sums_from(self, peer: int) -> list[list[object]]:
        place, replica = self._me
        return self._wires.slices[place, peer, replica]

    def _add_slices(self, op: Op) -> None:
        top = self._stack.pop()
        self._stack[-1] = [(*self._stack[-1],), (*top,)]

    def _send_slices(self, op: Op) -> None:
        place, replica = self._me
        self._wires.slices[place, replica, op.peer].append(self._stack.pop())

    def _receive_slices(self, op: Op) -> None:
        self._stack.append(self._sums_from(op.peer)[self._taken[op.peer]])
        self._taken[op.peer] += 1

    # ---- update

    def _summed(self) -> object:
        return tuple((b, tuple(sums)) for b, sums in sorted(self.sums.items()))

    def _apply_each(self, op: Op) -> None:
        if self._unused != [op.micro]:
            raise WrongError(f"{op}: there are gradients of {self._unused}")
        self._unused.clear()
        self._version += 1
        self._keep(f"update {self._version}", op.micro)

    def _apply(self) -> None:
        if self._agreed is None or self._agreed != self._summed() or self._moving:
            raise WrongError("the update comes before something")
        if "losses" not in self.results:
            raise WrongError("the losses are not noted")
        self._version += 1
        self._there.clear()
        self._agreed = None
        self._keep("updated", True)


def computed(groups: Groups) -> dict[Rank, dict[str, object]]:
    """What a step has summed, agreed on and updated, by rank; raises WrongError."""
    wires = Wires(groups)
    ranks = {
        (p, d): RankMachine(step, (p, d), wires)
        for p, row in enumerate(groups)
        for d, step in enumerate(row)
    }
    running = {rank: machine.run() for rank, machine in ranks.items()}
    while running:
        before = _progress(wires, ranks)
        for rank in [*running]:
            if next(running[rank], running) is running:
                del running[rank]
        if running and _progress(wires, ranks) == before:
            raise WrongError(f"{sorted(running)} wait for each other")
    return {rank: machine.results for rank, machine in ranks.items()}


def _progress(wires: Wires, ranks: Mapping[Rank, RankMachine]) -> object:
    moved = wires.sent, wires.slices, wires._calls
    return *(sum(map(len, of.values())) for of in moved), sum(
        m._taken.total() for m in ranks.values()
    )
