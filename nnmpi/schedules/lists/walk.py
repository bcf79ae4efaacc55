"""Walk: checks the list of operations that one rank carries out in a step, one after the other."""

from collections import Counter
from collections.abc import Callable
from itertools import product

from nnmpi.schedules.lists.passes import message_of
from nnmpi.schedules.lists.step_list import UPDATE, ScheduleError, StepList
from nnmpi.schedules.op import ADDS, FORWARD, NONE, PASSES, RECEIVES, SENDS, Kind, Op


class Walk:
    """Checks the operations of a rank's step one after the other. These attributes (with a leading
    underscore) keep the state to which they lead.

    arrived    buckets whose parameters are in their slots, as updated by the last step
    moving     buckets whose parameters are being gathered
    held       a dict: slot for parameters -> the bucket whose parameters are in it
    opened     a dict: (bucket, micro-batch) to whose gradients passes may add -> their slot; NONE
               where each bucket has its own memory
    added      how many passes have added to the gradients of each bucket
    flying     sums of gradients that are in progress
    due        for each sum of a bucket that has not started, in order: how many passes add to it
    state      the last pass of each unit and micro-batch
    outputs    the units whose output the next unit has not used yet
    gradients  the units whose gradient of the input the previous unit has not used yet"""

    def __init__(self, step: StepList, where: str) -> None:
        self._step, self._where, self._chain = step, where, step.chain
        self._held = {step.slots[b]: b for b in step.begins}
        self._arrived, self._moving = set[int](), {*step.begins}
        self._opened, self._added = dict[tuple[int, int], int](), Counter[tuple[int, int]]()
        self._flying, self._due = set[tuple[int, int, int]](), _contributions(step)
        self._passes, self._state = {*step.passes}, dict[tuple[int, int], Kind]()
        self._outputs, self._gradients = set[tuple[int, int]](), set[tuple[int, int]]()
        self._posted, self._sent, self._ended = set[Op](), set[Op](), list[Op]()
        self._computed = 0  # passes that have added to gradients
        self._noted, self._losses = 0, sum(op.kind is Kind.F for op in step.passes)
        self._messages = _messages_of(step)
        self._of_strategy = step.walk(step) if step.walk else None
        if not step.scatters:
            self._opened = dict.fromkeys(((b, NONE) for b in range(len(self._chain.lengths))), NONE)
        self._check: dict[Kind, Callable[[Op], str]] = {
            **dict.fromkeys(PASSES, self._pass),
            **dict.fromkeys(RECEIVES, self._receive),
            **dict.fromkeys(SENDS, self._send),
            Kind.NOTE: self._note,
            Kind.GATHER: self._gather,
            Kind.WAIT: self._wait,
            Kind.OPEN: self._open,
            Kind.SUM: self._sum,
            Kind.FINISH: self._finish,
            Kind.TIES: self._end,
            Kind.TERMS: self._end,
            Kind.AGREE: self._agree,
            Kind.APPLY: self._apply_each if step.overlaps else self._apply,
        }

    def run(self) -> None:
        """Checks all operations; raises ScheduleError for the first that is wrong."""
        for k, op in enumerate(self._step.ops):
            if wrong := self._wrong(op):
                raise ScheduleError(f"{self._where}, operation {k}, {op}: {wrong}")
        passes = tuple(op for op in self._step.ops if op.kind in PASSES)
        if passes != self._step.passes:
            raise ScheduleError(f"{self._where}: the passes are not those of the schedule")
        for unit, micro in product(range(len(self._chain.units)), range(self._step.micro)):
            if self._state.get((unit, micro)) not in (ADDS if self._step.ends else FORWARD):
                way = "backward" if self._step.ends else "forward"
                at = f"micro-batch {micro} through stage {self._chain.units[unit].stage}"
                raise ScheduleError(f"{self._where}: the {way} pass of {at} is missing")
        if tuple(self._ended) != self._step.ends:
            raise ScheduleError(f"{self._where}: the step does not end with an update")
        gathered = self._moving
        if not self._step.ends:  # values stay where they are, since no update follows
            gathered, self._arrived = {*self._step.begins} & (gathered | self._arrived), set()
        if gathered != {*self._step.begins} or self._arrived:
            raise ScheduleError(f"{self._where}: the next step begins with other gathers")
        if due := self._messages - self._sent - self._posted:
            raise ScheduleError(f"{self._where}: {', '.join(map(str, due))} is missing")

    def _wrong(self, op: Op) -> str:
        """Returns a text that says what is wrong with an operation, or "". An operation that only
        one strategy has (such as a read from disk) is checked by that strategy's own check."""
        check = self._check.get(op.kind)
        if self._of_strategy is None:
            return check(op) if check else "is no operation of this list"
        return (check(op) if check else "") or self._of_strategy(op)

    # ---- passes

    def _pass(self, op: Op) -> str:
        if op not in self._passes:
            units = len(self._chain.units)
            return f"is no pass of the schedule: this rank has the units 0 to {units - 1}"
        for b in self._chain.read_by(op) if self._step.slots else ():
            if self._held.get(self._step.slots[b]) != b or b not in self._arrived:
                return f"the values of bucket {b} are not in slot {self._step.slots[b]}"
        if self._is_over:
            return "comes after the agreement"
        if self._step.overlaps and self._computed // len(self._chain.units) > len(self._ended):
            return f"micro-batch {len(self._ended)} has not updated the parameters"
        if op.kind is Kind.F:
            return self._forward(op)
        if op.kind is Kind.RECOMPUTE:
            return self._again(op)
        if wrong := self._backward(op):
            return wrong
        return self._adds(op) if op.kind in ADDS else ""

    def _forward(self, op: Op) -> str:
        key = op.at, op.micro
        if key in self._state:
            return "runs twice"
        if wrong := self._takes(op, -1, self._outputs, "the output of unit"):
            return wrong
        self._state[key] = Kind.F
        self._outputs.add(key)
        return ""

    def _again(self, op: Op) -> str:
        units = self._chain.of_stage[op.stage]
        if any(self._state.get((u, op.micro)) not in FORWARD for u in units):
            return "the forward pass was not complete, or the backward pass has begun"
        self._state[op.at, op.micro] = Kind.RECOMPUTE
        return ""

    def _note(self, op: Op) -> str:
        self._noted += 1
        if len(self._state) * self._step.notes != self._noted * self._losses:
            return "comes twice, or a forward pass follows"
        return ""

    def _backward(self, op: Op) -> str:
        key = op.at, op.micro
        last = self._state.get(key)
        needed = {Kind.I} if op.kind is Kind.W else FORWARD
        if last not in needed:
            return f"comes after {last.value if last else 'nothing'}"
        self._state[key] = op.kind
        if op.kind is Kind.W:
            return ""
        self._gradients.add(key)
        return self._takes(op, +1, self._gradients, "the gradient from unit")

    def _takes(self, op: Op, away: int, made: set[tuple[int, int]], name: str) -> str:
        """Checks that a pass finds the output or gradient (`name` says which) of the previous
        (`away` = -1) or next (+1) unit: in `made`, the (unit, micro-batch) pairs of this rank, from
        which it is removed, or in a message. Returns what is missing, or ""."""
        unit, boundary = self._chain.neighbours(op.at, away)
        if unit != NONE and (unit, op.micro) not in made:
            return f"{name} {unit} is not there"
        made.discard((unit, op.micro))
        message = message_of(op, self._chain, sends=False)
        if boundary != NONE and message not in self._posted:
            return f"{message} was not posted"
        return ""

    def _adds(self, op: Op) -> str:
        self._computed += 1
        for b in self._chain.units[op.at].buckets:
            key = b, op.micro if self._step.scatters else NONE
            if key not in self._opened:
                return f"the gradients of bucket {b} are not open"
            self._added[key] += 1
        return ""

    def _receive(self, op: Op) -> str:
        if self._is_over or op in self._posted or op not in self._messages:
            return "no pass needs it, or it comes twice or after the agreement"
        self._posted.add(op)
        return ""

    def _send(self, op: Op) -> str:
        if self._is_over or op in self._sent or op not in self._messages:
            return "no pass makes it, or it comes twice or after the agreement"
        units, is_forward = self._chain.of_stage, op.kind is Kind.SEND_F
        unit = units[op.at - 1][-1] if is_forward else units[op.at][0]
        made = self._outputs if is_forward else self._gradients
        if (unit, op.micro) not in made:
            return "what it sends is not there"
        self._sent.add(op)
        return ""

    # ---- values

    def _gather(self, op: Op) -> str:
        if self._step.slots.get(op.at) != op.slot:
            return f"bucket {op.at} has slot {self._step.slots.get(op.at)}"
        replaced = self._held.get(op.slot)
        if replaced in self._moving:
            return f"bucket {replaced} is being gathered into this slot"
        if replaced == op.at and op.at in self._arrived:
            return "its values are there"
        self._arrived.discard(NONE if replaced is None else replaced)
        self._held[op.slot] = op.at
        self._moving.add(op.at)
        return ""

    def _wait(self, op: Op) -> str:
        if op.at not in self._moving or self._held.get(op.slot) != op.at:
            return "nothing is being gathered"
        self._moving.remove(op.at)
        self._arrived.add(op.at)
        return ""

    # ---- gradients

    def _open(self, op: Op) -> str:
        key, slots = (op.at, op.micro), {*self._opened.values(), *(s for *_, s in self._flying)}
        if op.slot in slots or op.slot >= self._step.room:
            return f"the slot is in use, or is none of {self._step.room}"
        if key in self._opened or not self._due.get(key):
            return "it is open, or no pass adds to it any more"
        self._opened[key] = op.slot
        return ""

    def _sum(self, op: Op) -> str:
        key = op.at, op.micro
        if self._opened.get(key) != op.slot:
            return "its gradients are not open, or are summed already"
        if self._added[key] != self._due[key][0]:
            return f"{self._added[key]} passes of {self._due[key][0]} have added to it"
        if not self._step.scatters and op.at == 0 and sum(map(len, self._due.values())) > 1:
            return "it is summed last, since it has the loss and says what was used"
        if self._noted < self._step.notes and not self._step.scatters:
            return "the loss is not noted"
        del self._opened[key]
        self._added[key] = 0
        self._due[key].pop(0)
        self._flying.add((*key, op.slot))
        return ""

    def _finish(self, op: Op) -> str:
        flight = op.at, op.micro, op.slot
        if flight not in self._flying:
            return "no such sum is under way"
        self._flying.remove(flight)
        return ""

    # ---- update

    def _end(self, op: Op) -> str:
        if self._flying or any(self._due.values()):
            return "sums are not complete"
        self._ended.append(op)
        return ""

    @property
    def _is_over(self) -> bool:
        """True if ranks have begun to agree on the update, after which no pass may follow."""
        return bool(self._ended) and not self._step.overlaps

    def _agree(self, op: Op) -> str:
        if (*self._ended, *UPDATE) != self._step.ends or self._noted < self._step.notes:
            return "the loss, or other sums, have to come before"
        return self._end(op)

    def _apply(self, op: Op) -> str:
        if self._ended[-1:] != [UPDATE[0]]:
            return "the ranks have not agreed"
        if self._moving:
            return f"buckets {sorted(self._moving)} are being gathered"
        self._arrived.clear()
        self._held.clear()
        self._ended.append(op)
        return ""

    def _apply_each(self, op: Op) -> str:
        units = range(len(self._chain.units))
        if any(self._state.get((u, op.micro)) not in ADDS for u in units):
            return "the backward pass of its micro-batch has not run"
        self._ended.append(op)
        return ""


def _messages_of(step: StepList) -> set[Op]:
    """Returns all messages that the passes of this rank receive and send."""
    both = (message_of(op, step.chain, s) for op in step.passes for s in (True, False))
    return {message for message in both if message}


def _contributions(step: StepList) -> dict[tuple[int, int], list[int]]:
    """Returns how many passes add to the gradients of a bucket before each of its sums: (bucket,
    micro-batch) -> one number for each sum, in the order of the list. There is one sum for each
    bucket (micro-batch NONE) or, if gradients are scattered, for each micro-batch and stage."""
    passes = Counter[tuple[int, int, int]]()
    if not step.scatters:  # a bucket that no pass uses is summed too: others may use it
        passes.update({(b, NONE, NONE): 0 for b in range(len(step.chain.lengths))})
    for op in step.passes:
        unit = step.chain.units[op.at]
        for b in unit.buckets if op.kind in ADDS else ():
            passes[(b, op.micro, unit.stage) if step.scatters else (b, NONE, NONE)] += 1
    due: dict[tuple[int, int], list[int]] = {}
    for (b, micro, _), times in passes.items():
        due.setdefault((b, micro), []).append(times)
    return due
