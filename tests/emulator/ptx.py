"""PTX as values: the functions and variables of a module, as NVRTC writes them.

module = parse(text)
module.functions[0].statements      # "@%p1 bra $L__BB0_2", "{", ".reg .b32 t", "$L__BB0_2:", ...
"""

import re
from typing import NamedTuple

BYTES = {
    **dict.fromkeys(("b8", "u8", "s8", "pred"), 1),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16"), 2),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2"), 4),
    **dict.fromkeys(("b64", "u64", "s64", "f64"), 8),
}
"""The types of PTX."""


class UnknownPtxError(ValueError):
    """PTX that the emulator does not know."""


class Variable(NamedTuple):
    """An array in memory; a count of None is for memory of the size that a launch asks for."""

    name: str
    space: str
    type: str
    align: int
    count: int | None
    values: list[str]

    @property
    def nbytes(self) -> int:
        return BYTES[self.type] * (self.count or 0)


class Function(NamedTuple):
    """A kernel (an entry), or a function that kernels call."""

    name: str
    is_entry: bool
    results: list[Variable]
    parameters: list[Variable]
    most_threads: int
    statements: list[str]


class Module(NamedTuple):
    functions: list[Function]
    variables: list[Variable]


LINKAGE = r"(?:\.(?:visible|extern|weak|common)\s+)*"
VARIABLE = re.compile(
    LINKAGE + r"\.(?P<space>global|const|shared|local|param)\s+(?:\.align\s+(?P<align>\d+)\s+)?"
    r"\.(?P<type>\w+)\s+(?:\.ptr\s+(?:\.\w+\s+)*(?:\.align\s+\d+\s+)?)?(?P<name>[%$\w]+)"
    r"\s*(?P<dims>(?:\[\d*\])*)\s*(?:=\s*(?P<values>[^;]*))?"
)
HEAD = re.compile(
    LINKAGE + r"\.(?P<kind>entry|func)\s*(?:\.noreturn\s*)?(?:\((?P<results>[^)]*)\))?"
    r"\s*(?P<name>[$\w]+)\s*(?:\((?P<parameters>[^)]*)\))?(?P<directives>[^{;]*)"
)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
IGNORED = re.compile(r"\.(version|target|address_size|file|section)[^\n]*\n|\.pragma[^;]*;")
MOST_THREADS = re.compile(r"\.(?:maxntid|reqntid)\s+([\d,\s]+)")
STATEMENT = re.compile(
    r"\s*(?:(?P<label>[$\w]+\s*:)(?!:)|(?P<brace>[{}])|(?P<text>(?:[^;{}]|\{[^{}]*\})+);)"
)


def parse(text: str) -> Module:
    """The functions and variables of a text."""
    text = COMMENT.sub("", text) + "\n"
    module, at = Module([], []), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
        elif found := IGNORED.match(text, at):
            at = found.end()
        elif found := HEAD.match(text, at):
            at = found.end()
            if text[at] == "{":
                end = _end_of_braces(text, at)
                module.functions.append(_function(found, text[at + 1 : end]))
                at = end
            at += 1
        elif found := VARIABLE.match(text, at):
            module.variables.append(variable(found))
            at = found.end() + 1
        else:
            raise UnknownPtxError(f"unknown PTX: {text[at : at + 80].splitlines()[0]}")
    return module


def kernels(text: str) -> list[Function]:
    """The kernels of a text, without their statements."""
    heads = HEAD.finditer(COMMENT.sub("", text))
    return [_function(head, "") for head in heads if head["kind"] == "entry"]


def variable(found: re.Match[str]) -> Variable:
    """A declaration."""
    part = found.groupdict()
    if part["type"] not in BYTES:
        raise UnknownPtxError(f"unknown type of PTX: .{part['type']}")
    count: int | None = 1
    for n in re.findall(r"\[(\d*)\]", part["dims"]):
        count = count * int(n) if n and count is not None else None
    values = re.split(r"\s*,\s*", part["values"].strip("{} \n")) if part["values"] else []
    align = int(part["align"] or BYTES[part["type"]])
    return Variable(part["name"], part["space"], part["type"], align, count, values)


def declarations(text: str | None) -> list[Variable]:
    """Parameters, separated by commas."""
    found = [VARIABLE.fullmatch(p.strip()) for p in (text or "").split(",") if p.strip()]
    if None in found:
        raise UnknownPtxError(f"unknown parameters in PTX: {text}")
    return [variable(match) for match in found if match]


def _function(head: re.Match[str], body: str) -> Function:
    threads = MOST_THREADS.search(head["directives"])
    most = 1
    for n in threads[1].split(",") if threads else ["1024"]:
        most *= int(n)
    is_entry = head["kind"] == "entry"
    results, parameters = declarations(head["results"]), declarations(head["parameters"])
    return Function(head["name"], is_entry, results, parameters, most, _statements(body))


def _statements(body: str) -> list[str]:
    statements, at, body = [], 0, body.rstrip()
    while at < len(body):
        found = STATEMENT.match(body, at)
        if not found:
            raise UnknownPtxError(f"unknown statement of PTX: {body[at : at + 80].strip()}")
        statements.append(" ".join(found[0].split()).removesuffix(";").strip())
        at = found.end()
    return statements


def _end_of_braces(text: str, at: int) -> int:
    depth = 0
    for found in re.compile(r"[{}]").finditer(text, at):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return found.start()
    raise UnknownPtxError("a function of PTX without an end")
