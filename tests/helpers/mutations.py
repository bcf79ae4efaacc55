"""Small faults that a script plants in nnmpi, for scripts/mutants: which there are, and a sample.

    value     another number, operator or comparison; min for max
    order     two statements exchanged; a loop that goes backwards
    message   a call whose result nobody uses left out: a send, a wait, a note
    guard     a condition turned round; a refusal or an early return that never comes

Only functions are changed. The sample is the same in each run: it takes each folder of nnmpi and
each kind in turn, and within them what the checksums of the faulty lines say.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar
from zlib import crc32

T = TypeVar("T")


class Mutation(NamedTuple):
    """A text of a file, from one byte to another, and the text that takes its place.

    within   the line that it begins in
    """

    file: str
    line: int
    within: str
    kind: str
    start: int
    end: int
    old: str
    new: str

    @property
    def name(self) -> str:
        """Where it is and what it does, in one line."""
        old, new = " ".join(self.old.split()), " ".join(self.new.split())
        return f"{self.file}:{self.line} {self.kind}: {old} -> {new}"

    @property
    def room(self) -> str:
        """The folder of nnmpi that it is in; the commands and other files are one room."""
        folder = self.file.split("/")[1]
        return "nnmpi" if folder.endswith(".py") else folder

    def applied(self, source: bytes) -> bytes:
        """The text of the file with the fault."""
        return source[: self.start] + self.new.encode() + source[self.end :]


ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.Mod: "//",
}
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
LEAVES = ast.Raise | ast.Return | ast.Continue | ast.Break


class Finder:
    """The mutations of one file."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file = file
        self.source = source
        self.lines = [0]
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def __iter__(self) -> Iterator[Mutation]:
        for function in _functions(ast.parse(self.source)):
            for statements in _blocks(function):
                for statement in statements:
                    yield from self._of_statement(statement)
                for pair in pairwise(statements):
                    yield from self._exchanged(*pair)

    def _of_statement(self, statement: ast.stmt) -> Iterator[Mutation]:
        match statement:
            case ast.Expr(ast.Call() | ast.Await() | ast.YieldFrom()):
                yield self._replaced(statement, "message", "pass")
            case ast.Assert():
                yield self._replaced(statement, "guard", "pass")
            case ast.If(test, [only], []) if isinstance(only, LEAVES):
                yield self._replaced(test, "guard", f"False and ({self._text(test)})")
                yield self._replaced(test, "guard", f"not ({self._text(test)})")
            case ast.If(test):
                yield self._replaced(test, "guard", f"not ({self._text(test)})")
            case ast.For(_, iterated):
                yield self._replaced(iterated, "order", f"reversed([*{self._text(iterated)}])")
        for expression in _expressions(statement):
            yield from self._of_expression(expression)

    def _of_expression(self, node: ast.expr) -> Iterator[Mutation]:
        match node:
            case ast.Constant(bool(value)):
                yield self._replaced(node, "value", str(not value))
            case ast.Constant(int(value)):
                yield self._replaced(node, "value", str(value + 1))
            case ast.BinOp(left, operator, right) if type(operator) in ARITHMETIC:
                yield self._between(left, right, ARITHMETIC[type(operator)])
            case ast.Compare(left, [operator], [right]) if type(operator) in COMPARISONS:
                yield self._between(left, right, COMPARISONS[type(operator)])
            case ast.Call(ast.Name(name) as function) if name in OPPOSITES:
                yield self._replaced(function, "value", OPPOSITES[name])

    def _exchanged(self, first: ast.stmt, second: ast.stmt) -> Iterator[Mutation]:
        """Only calls: of those statements the order matters that change something, and a name
        that is used before it is set is no fault that anybody overlooks."""
        both = (first, second)
        if all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) for each in both):
            between = self.source[self._span(first)[1] : self._span(second)[0]].decode()
            new = self._text(second) + between + self._text(first)
            start, end = self._span(first)[0], self._span(second)[1]
            yield self._mutation(first.lineno, "order", start, end, new)

    def _replaced(self, node: ast.stmt | ast.expr, kind: str, new: str) -> Mutation:
        return self._mutation(node.lineno, kind, *self._span(node), new)

    def _between(self, left: ast.expr, right: ast.expr, new: str) -> Mutation:
        """With another operator between two operands, whose parentheses stay."""
        start, end = self._span(left)[1], self._span(right)[0]
        old = self.source[start:end].decode()
        before, after = old[: old.rfind(")") + 1], old[old.find("(") :] if "(" in old else ""
        return self._mutation(left.lineno, "value", start, end, f"{before} {new} {after}")

    def _mutation(self, line: int, kind: str, start: int, end: int, new: str) -> Mutation:
        within = self.source[self.lines[line - 1] : self.lines[line]].decode().strip()
        old = self.source[start:end].decode()
        return Mutation(self.file, line, within, kind, start, end, old, new)

    def _span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        start = self.lines[node.lineno - 1] + node.col_offset
        return start, self.lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def _text(self, node: ast.stmt | ast.expr) -> str:
        start, end = self._span(node)
        return self.source[start:end].decode()


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements of a function, without those of functions within it."""
    for field in "body", "orelse", "finalbody", "handlers", "cases":
        if inner := getattr(node, field, []):
            if isinstance(inner[0], ast.stmt):
                yield inner
            for child in inner:
                if not isinstance(child, ast.FunctionDef | ast.ClassDef):
                    yield from _blocks(child)


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement, without types, default values and the statements in it."""
    match statement:
        case ast.FunctionDef() | ast.ClassDef() | ast.Expr(ast.Constant()):
            return
    for part in ast.iter_child_nodes(statement):
        is_type = isinstance(statement, ast.AnnAssign) and part is statement.annotation
        if isinstance(part, ast.expr) and not is_type:
            yield from (node for node in ast.walk(part) if isinstance(node, ast.expr))


def mutations(root: Path) -> Iterator[Mutation]:
    """All mutations of nnmpi, a few of which are no Python."""
    for path in sorted((root / "nnmpi").rglob("*.py")):
        yield from Finder(str(path.relative_to(root)), path.read_bytes())


def sample(n: int, root: Path) -> list[Mutation]:
    """So many mutations, of each folder and kind in turn."""
    folders = defaultdict[str, defaultdict[str, list[Mutation]]](lambda: defaultdict(list))
    for each in mutations(root):
        folders[each.file.rpartition("/")[0]][each.kind].append(each)
    turns = [_in_turn(map(_shuffled, kinds.values())) for kinds in folders.values()]
    valid = (each for each in _in_turn(turns) if _is_python(root, each))
    return sorted(islice(valid, n))


def _shuffled(of: list[Mutation]) -> list[Mutation]:
    """In an order that has nothing to do with that of the files, and that keeps as lines move."""
    return sorted(of, key=lambda each: crc32(f"{each.within} {each.old} {each.new}".encode()))


def _in_turn(groups: Iterable[Iterable[T]]) -> Iterator[T]:
    """One of each group, then the next of each, until all have ended."""
    left = [iter(group) for group in groups]
    while left:
        for group in [*left]:
            try:
                yield next(group)
            except StopIteration:
                left.remove(group)


def _is_python(root: Path, mutation: Mutation) -> bool:
    try:
        ast.parse(mutation.applied((root / mutation.file).read_bytes()))
    except SyntaxError:
        return False
    return True
