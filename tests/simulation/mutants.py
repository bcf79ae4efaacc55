"""Mutants: defects of nnmpi, a text each that replaces another, that cases have to find."""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any, NamedTuple

from simulation.case import Case
from simulation.draw import drawn_case
from simulation.layouts import LAYOUTS
from simulation.verdict import undisturbed, verdict

NOTE = "note_that_a_mutant_is_reached"


class Mutant(NamedTuple):
    """A function of which a text is replaced.

    function   its module and its name there
    layouts    where it has an effect; by default all
    killed_by  the case that finds it, or the quick test that does where no case can
    equal      why nothing can find it: the defect changes nothing
    """

    name: str
    function: tuple[str, str]
    old: str
    new: str
    layouts: tuple[str, ...] = ()
    killed_by: Case | str = ""
    equal: str = ""


class Reached:
    """Counts how often a mutated text was reached."""

    def __init__(self) -> None:
        self.times = 0

    def note(self) -> None:
        self.times += 1


@contextmanager
def mutated(mutant: Mutant) -> Iterator[Reached]:
    """Lets the function of a mutant be defective within the block, wherever it is referred to."""
    function, reached = _function(*mutant.function), Reached()
    plain, space = function.__code__, function.__globals__
    function.__code__, space[NOTE] = _mutated_code(function, mutant), reached.note
    try:
        yield reached
    finally:
        function.__code__ = plain
        del space[NOTE]


class Search(NamedTuple):
    """What drawn cases have made of a mutant: the one that finds it, if any, how many were tried,
    and how many of them reached it."""

    case: Case | None
    tried: int
    reached: int


def first_kill(mutant: Mutant, seeds: int) -> Search:
    """The first of so many drawn cases that finds a mutant."""
    for name in mutant.layouts or LAYOUTS:
        undisturbed(name)  # without the defect
    found = 0
    for seed in range(seeds):
        case = drawn_case(seed, mutant.layouts)
        with mutated(mutant) as reached:
            is_bad = verdict(case).is_bad
        found += reached.times > 0
        if is_bad:
            return Search(case, seed + 1, found)
    return Search(None, seeds, found)


def _function(module: str, name: str) -> Any:
    """The plain function behind a method, a property or a wrapper."""
    owner: Any = importlib.import_module(module)
    for part in name.split("."):
        owner = inspect.getattr_static(owner, part)
    while not inspect.isfunction(owner) or hasattr(owner, "__wrapped__"):
        if isinstance(owner, property):
            owner = owner.fget
        else:
            owner = getattr(owner, "__wrapped__", None) or owner.__func__
    return owner


def _mutated_code(function: Any, mutant: Mutant) -> CodeType:
    """The code of a function with the text of a mutant replaced, which notes that it is reached."""
    text = textwrap.dedent(inspect.getsource(function))
    text = text[text.index("def ") :]  # without decorators
    found = text.count(mutant.old)
    if found != 1:
        raise ValueError(f"{mutant.name}: {mutant.old!r} is {found} times in {mutant.function[1]}")
    before = text[: text.index(mutant.old)].rpartition("\n")[2]
    margin = before[: len(before) - len(before.lstrip())]
    line = 1 + text[: text.index(mutant.old)].count("\n")
    first, *rest = mutant.new.split("\n")
    text = text.replace(mutant.old, "\n".join([first, *(margin + line for line in rest)]))
    tree = ast.parse(text)
    _note_line(tree.body, line)
    free = function.__code__.co_freevars
    source = (
        "from __future__ import annotations\n"
        f"def make({', '.join(free)}):\n"
        + textwrap.indent(ast.unparse(tree), "    ")
        + f"\n    return {function.__name__}"
    )
    space: dict[str, Any] = dict(function.__globals__)
    exec(compile(source, f"<{mutant.name}>", "exec"), space)
    make: Callable[..., Any] = space["make"]
    code: CodeType = make(*[None] * len(free)).__code__
    return code


def _note_line(body: list[ast.stmt], line: int) -> bool:
    """Inserts a call of the note before the innermost statement on a line; returns False if there
    is none."""
    for i, statement in enumerate(body):
        if statement.lineno <= line <= (statement.end_lineno or 0):
            inner = [
                getattr(part, name, [])
                for part in (statement, *getattr(statement, "handlers", ()))
                for name in ("body", "orelse", "finalbody")
            ]
            if not any(_note_line(statements, line) for statements in inner):
                body[i:i] = ast.parse(f"{NOTE}()").body
            return True
    return False


MUTANTS = (
    Mutant(
        "agree skipped",
        ("nnmpi.comm.calls", "CallRunner.agree"),
        "rank, size = self.transport.rank, self.transport.size",
        "if error is not None:\n    raise error\nreturn\nrank, size = 0, 1",
        ("ring", "pipelines", "tensor parallel", "zero 1, backups", "zero 1, checkpoints"),
    ),
    Mutant(
        "lost wait in Work.wait",
        ("nnmpi.comm.progress", "Work.wait"),
        "while not self.done:",
        "for _ in range(2 * (not self.done)):",
        ("zero 3, backups", "pipelines", "gossip", "ring"),
    ),
    Mutant(
        "a loss does not revoke",
        ("nnmpi.comm.transport.base", "TransportFamily.lost"),
        "self.abandon()",
        "pass",
        ("ring", "pipelines", "tensor parallel", "zero 1, backups"),
    ),
    Mutant(
        "works not ended at abandon",
        ("nnmpi.comm.progress", "Progress.abandon"),
        "work.abandon()",
        "pass",
        (
            "ring",
            "pipelines",
            "tensor parallel",
            "zero 1, backups",
            "fragments",
            "zero 3, backups, checkpoints",
        ),
    ),
    Mutant(
        "free without barrier",
        ("nnmpi.comm.communicator", "Comm.free"),
        "if not self.is_abandoned:",
        "if False:",
        ("rearranged", "rearranged, backups", "ring"),
    ),
    Mutant(
        "one tag for all calls",
        ("nnmpi.comm.calls", "CallRunner.planned"),
        "call[1] % TAGS",
        "0",
        ("zero 3, backups", "zero 1, checkpoints", "ring"),
    ),
    Mutant(
        "arranged without barrier",
        ("nnmpi.run.recovery.recovery", "Recovery.arranged"),
        "session.comm.barrier()",
        "pass",
        ("rearranged pp, tp",),
    ),
    Mutant(
        "buffers not restored",
        ("nnmpi.run.recovery.recovery", "Recovery._leave"),
        "last.restore()",
        "pass",
        ("local", "servers", "ring", "local, plain mean", "fragments"),
    ),
    Mutant(
        "decided step not made",
        ("nnmpi.run.recovery.recovery", "Recovery._leave"),
        "last.make(plan.decision[1])",
        "pass",
        (
            "ring",
            "pipelines",
            "tensor parallel",
            "zero 1, backups",
            "zero 1, backups",
            "zero 3, backups",
            "zero 1 adam, backups",
            "one pipeline, backups",
            "zero 1 pp 2, backups",
        ),
    ),
    Mutant(
        "backup parts not merged",
        ("nnmpi.run.recovery.recovery", "Recovery._leave"),
        "if known is not version:",
        "if False:",
        (
            "zero 1, backups",
            "zero 3, backups",
            "zero 1 adam, backups",
            "one pipeline, backups",
            "zero 1 pp 2, backups",
        ),
    ),
    Mutant(
        "kept dropped before others have it",
        ("nnmpi.run.recovery.recovery", "Recovery._arrange_all"),
        "self._take(trainer, plan)",
        "self._take(trainer, plan)\nself._kept.clear()",
        (
            "zero 1, backups",
            "zero 3, backups",
            "zero 1 adam, backups",
            "one pipeline, backups",
            "zero 1 pp 2, backups",
        ),
    ),
    Mutant(
        "step not counted",
        ("nnmpi.run.recovery.recovery", "Recovery._take"),
        "run.count_step(run.last)",
        "pass",
        ("ring", "pipelines", "tensor parallel", "zero 1, backups"),
    ),
    Mutant(
        "oldest version",
        ("nnmpi.run.recovery.held_copies", "newest"),
        "reverse=True",
        "reverse=False",
        (
            "ring",
            "pipelines",
            "tensor parallel",
            "zero 1, backups",
            "zero 1, backups",
            "zero 3, backups",
            "zero 1 adam, backups",
            "one pipeline, backups",
            "zero 1 pp 2, backups",
        ),
    ),
    Mutant(
        "most progress",
        ("nnmpi.run.recovery.held_copies", "newest"),
        "min(of_key, key=progress)",
        "max(of_key, key=progress)",
        (
            "ring",
            "pipelines",
            "tensor parallel",
            "zero 1, backups",
            "zero 1, backups",
            "zero 3, backups",
            "zero 1 adam, backups",
            "one pipeline, backups",
            "zero 1 pp 2, backups",
        ),
    ),
    Mutant(
        "step never finished",
        ("nnmpi.run.recovery.rank_status", "agreed"),
        "makes_step = made is not None and (source is None or made.version > source.version)",
        "makes_step = False",
        (
            "ring",
            "pipelines",
            "tensor parallel",
            "zero 1, backups",
            "zero 1, backups",
            "zero 3, backups",
            "zero 1 adam, backups",
            "one pipeline, backups",
            "zero 1 pp 2, backups",
        ),
    ),
    Mutant(
        "any decision fits",
        ("nnmpi.run.recovery.rank_status", "RankStatus.can_hold"),
        "self.may_make != decision[0]",
        "self.may_make is None",
        ("ring", "pipelines", "tensor parallel", "zero 1, backups", "local", "local, plain mean"),
    ),
    Mutant(
        "end without confirm",
        ("nnmpi.run.recovery.survivors", "Survivors.end"),
        "self.all.confirm()",
        "pass",
        ("ring", "pipelines", "tensor parallel", "zero 1, backups"),
    ),
    Mutant(
        "least reported: most",
        ("nnmpi.run.recovery.rank_status", "_progress"),
        "status.reported.events, status.reported.calls",
        "(-status.reported.events[0], 0, 0), status.reported.calls",
        ("tensor parallel", "two nodes", "pipelines"),
    ),
    Mutant(
        "a checkpoint is not abandoned",
        ("nnmpi.run.recovery.recovery", "Recovery._go_on"),
        "trainer.checkpoints.abandon()",
        "pass",
        ("zero 1, checkpoints", "ring, checkpoints", "zero 3, backups, checkpoints"),
    ),
    Mutant(
        "reported twice",
        ("nnmpi.run.reported", "ReportedEvents.once"),
        "return position > last",
        "return position >= last",
        ("ring", "pipelines", "tensor parallel", "zero 1, backups"),
    ),
    Mutant(
        "stop not agreed",
        ("nnmpi.run.evaluation", "requests"),
        'trainer.comm.all_reduce(row, "doubling")',
        "pass",
        ("zero 1, checkpoints", "ring, checkpoints", "zero 3, backups, checkpoints"),
    ),
    Mutant(
        "sums noted after the agreement",
        ("nnmpi.parallel.step.update", "Update.apply"),
        "self.summed, self.decision = step + 1, None\n"
        "    if self._model.size > 1:\n        sums = self._agreed(sums)",
        "if self._model.size > 1:\n    sums = self._agreed(sums)\n"
        "self.summed, self.decision = step + 1, None",
        ("pipelines", "tensor parallel", "zero 1 pp 2, backups"),
    ),
    Mutant(
        "norm not agreed",
        ("nnmpi.parallel.step.update", "Update.apply"),
        "if self._model.size > 1:",
        "if False:",
        ("pipelines", "tensor parallel", "one pipeline, backups"),
    ),
    Mutant(
        "double update",
        ("nnmpi.parallel.step.update", "Update.carry_out"),
        "self._store.commit()",
        "self._store.commit()\nself._optimizer.step(lr_factor=self._lr_factor(self.summed - 1))",
        ("ring",),
    ),
    Mutant(
        "double update of a rank that knows",
        ("nnmpi.parallel.step.last_step", "LastStep.may_make"),
        "self._update.summed > self._update.version",
        "self._update.summed >= self._update.version and self._update.summed",
        ("ring", "pipelines", "tensor parallel", "zero 1, backups", "pipelines"),
    ),
    Mutant(
        "restored after an update",
        ("nnmpi.parallel.step.last_step", "LastStep.restore"),
        "self._update.version <= self._begun",
        "True",
        ("servers", "ring", "pipelines"),
    ),
    Mutant(
        "rate of the next step",
        ("nnmpi.parallel.step.update", "Update.carry_out"),
        "self._lr_factor(self.summed - 1)",
        "self._lr_factor(self.summed)",
        ("ring", "pipelines"),
    ),
    Mutant(
        "round: Adam's steps not undone",
        ("nnmpi.parallel.step.last_round", "LastRound.restore"),
        "self._optimizer.steps[:] = self._steps",
        "pass",
        ("local", "fragments"),
    ),
    Mutant(
        "round without barrier",
        ("nnmpi.parallel.averaging.rounds", "Rounds._met"),
        "self._all.barrier()",
        "pass",
        ("local, plain mean", "local", "gossip", "fragments"),
    ),
    Mutant(
        "fragment forgets own steps",
        ("nnmpi.parallel.averaging.outer", "OuterOptimizer._apply"),
        "g += replica.values() - values",
        "pass",
        ("fragments",),
    ),
    Mutant(
        "own values not kept",
        ("nnmpi.parallel.averaging.means", "OwnValues.show"),
        "self._replica.values() - values",
        "0 * values",
        ("gossip", "fragments"),
    ),
    Mutant(
        "residual written at once",
        ("nnmpi.parallel.stores.compressed", "CompressedStore._phases"),
        "self._kept[b] = bucket",
        "self._kept[b] = bucket\n"
        "for i, part in zip(members, bucket.parts, strict=True):\n"
        "    state = self._optimizer.state[RESIDUAL]\n"
        "    state[self._places[i]] = bucket.row[part]",
        ("topk", "topk of all"),
    ),
    Mutant(
        "stale residual",
        ("nnmpi.parallel.stores.compressed", "CompressedStore.commit"),
        "state[RESIDUAL][self._places[i]] = bucket.row[part]",
        "pass",
        ("topk", "topk of all"),
    ),
    Mutant(
        "off by one of a bucket",
        ("nnmpi.parallel.stores.buckets", "Buckets.__init__"),
        "bisect_right(stops, start)",
        "bisect_right(stops, start - 1)",
        ("zero 3, backups", "zero 2, backups", "ring"),
    ),
    Mutant(
        "values not gathered",
        ("nnmpi.parallel.stores.zero", "ZeroStore.settle"),
        "self._values.gather()",
        "pass",
        ("zero 1, backups", "zero 3, backups", "zero 2, backups"),
    ),
    Mutant(
        "order not compared",
        ("nnmpi.parallel.stores.zero", "ZeroStore.totals"),
        "if orders * orders != self.dp.size * squared:",
        "if False:",
        ("zero 3, backups",),
    ),
    Mutant(
        "backup not agreed",
        ("nnmpi.parallel.backup", "Backups._finish"),
        'self._comm.all_reduce(row, "doubling")',
        "row *= self._comm.size",
        ("zero 1, backups", "zero 3, backups", "one pipeline, backups"),
    ),
    Mutant(
        "newest backup overwritten",
        ("nnmpi.parallel.backup", "Backups._start"),
        "min(self._memories",
        "max(self._memories",
        ("zero 1, backups", "zero 3, backups", "one pipeline, backups"),
    ),
    Mutant(
        "server: double update",
        ("nnmpi.parallel.server.server", "ParameterServer._handle"),
        "self._update(range(len(self._channels)))",
        "self._update(range(len(self._channels)))\nself._update(range(len(self._channels)))",
        ("servers",),
    ),
    Mutant(
        "server: bound off by one",
        ("nnmpi.parallel.server.server", "ClockTable.released"),
        "<= self._bound",
        "<= self._bound + 1",
        ("ssp", "servers"),
    ),
    Mutant(
        "server: values sent while updated",
        ("nnmpi.parallel.server.exchange", "ReplyChannel.__init__"),
        "zeros_like(self._parameters) if copies else self._parameters",
        "self._parameters",
        ("asp", "ssp"),
    ),
    Mutant(
        "worker waits for the first server only",
        ("nnmpi.parallel.server.exchange", "RequestChannel.ask"),
        "wait_all(works)",
        "wait_all(works[:3])",
        ("servers", "asp"),
    ),
    Mutant(
        "epoch start not copied",
        ("nnmpi.run.session", "Session.steps"),
        "saved(self.part, self.optimizer)",
        "self.snapshot(copies=False).owned",
        ("servers", "asp"),
    ),
    Mutant(
        "committed before others have written",
        ("nnmpi.io.checkpoints.write", "Writer._steps"),
        "files = yield from self._gathered(written)",
        "files = [written] * self._comm.size",
        ("zero 1, checkpoints", "zero 3, backups, checkpoints"),
    ),
    Mutant(
        "SIGTERM again in a repeated step",
        ("nnmpi.run.run_state", "RunState._request"),
        "if request and self.reported.events",
        "if False and self.reported.events",
        ("ring, checkpoints", "zero 1, checkpoints"),
    ),
)
