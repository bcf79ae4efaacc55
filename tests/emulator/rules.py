"""Rules for PTX's instructions that do more than compute a value of their operands.

A rule gets the writer of the function, the match of the opcode, and the operands.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from emulator.cpp import BITS, CPP, name_of, split
from emulator.instructions import ATOMIC, COMPARE, COMPARED, TO_OTHER
from emulator.ptx import BYTES, UnknownPtxError

if TYPE_CHECKING:
    from emulator.writer import FunctionWriter

Rule = Callable[["FunctionWriter", "re.Match[str]", list[str]], str]

HALVES = ("f16", "bf16")
REALS = (*HALVES, "f32", "f64")
ROUNDING = {"rn": "RN", "rz": "RZ", "rm": "RM", "rp": "RP"}
SPACES = {"global": "GLOBAL", "const": "GLOBAL", "shared": "SHARED", None: "GENERIC"}


def unknown(m: re.Match[str], o: list[str]) -> UnknownPtxError:
    return UnknownPtxError(f"unknown instruction of PTX: {m[0]} {', '.join(o)}")


def move(w: "FunctionWriter", m: re.Match[str], o: list[str]) -> str:
    """A copy, or registers that are joined to one or taken from one."""
    kind = m["T"]
    parts = split(next((x for x in o if x.startswith("{")), "").strip("{}"))
    n = 8 * BYTES[kind] // max(len(parts), 1)
    if o[0].startswith("{"):
        puts = (w.put(p, f"b{n}", f"w >> {n * k}") for k, p in enumerate(parts) if p != "_")
        return f"auto w = {w.value(o[1], kind)}; {' '.join(puts)}"
    if parts:
        values = (f"u64({w.value(p, f'b{n}')}) << {n * k}" for k, p in enumerate(parts))
        return w.put(o[0], kind, " | ".join(values))
    bits = f"b{8 * BYTES[kind]}" if kind != "pred" else kind
    return w.put(o[0], bits, w.value(o[1], bits))


def load(w: "FunctionWriter", m: re.Match[str], o: list[str]) -> str:
    names = split(o[0].strip("{}"))
    place = _place(w, m, o, 1, names, "false")
    kind = m["T"] if m["T"][0] == "s" else BITS[m["T"]]
    targets = ("unused" if n == "_" else name_of(n) for n in names)
    return place + "".join(f"loaded<{kind}>({target}, p);" for target in targets)


def store(w: "FunctionWriter", m: re.Match[str], o: list[str]) -> str:
    values = split(o[1].strip("{}"))
    place = _place(w, m, o, 0, values, "true")
    bits = BITS[m["T"]]
    return place + "".join(f"stored<{bits}>(p, {w.value(v, bits)});" for v in values)


def _place(
    w: "FunctionWriter", m: re.Match[str], o: list[str], at: int, parts: list[str], writes: str
) -> str:
    if m["T"] not in BYTES or len(parts) != int(m["n"] or 1):
        raise unknown(m, o)
    kind = f"{SPACES.get(m['space'], 'LOCAL')}, {BITS[m['T']]}"
    call = f"place<{kind}>(t, {w.address(o[at])}, {len(parts)}, {writes}, bounds)"
    return f"static Bounds bounds; char* p = {call};"


def compare(w: "FunctionWriter", m: re.Match[str], o: list[str]) -> str:
    kind, flush = m["T"], "flushed" if m["ftz"] else ""
    if kind not in REALS and (m["compare"][2:] or m["ftz"]):
        raise unknown(m, o)
    operands = (f"{flush}({w.value(x, kind)})" for x in o[1:3])
    code = "".join(f"auto {name} = {x}; " for name, x in zip("ab", operands, strict=True))
    other = w.value(o[3], "pred") if m["combine"] else "true"
    code += f"bool is = {COMPARE[m['compare']]}, other = {other};"
    sign = {"or": "|", "xor": "^"}.get(m["combine"], "&")
    first, _, second = (p.strip() for p in o[0].partition("|"))
    code += w.put(first, "pred", f"is {sign} other")
    return code + (w.put(second, "pred", f"!is {sign} other") if second else "")


def convert(w: "FunctionWriter", m: re.Match[str], o: list[str]) -> str:
    D, S = m["D"], m["S"]
    rounding = ROUNDING[m["R"]] if m["R"] else "RN"
    known, value = S not in REALS or D in REALS, "a"
    if m["i"]:
        known, value = S in REALS, f"whole<{rounding}>(f64(a))"
        value = value if D in REALS else f"integer_of<{CPP[D]}>({value})"
    elif D in HALVES:
        is_exact = D == "f16" or S not in ("u64", "s64")  # in f64, where D is not infinite
        known, value = rounding == "RN" and is_exact, "f64(a)"
    elif D in REALS:
        known, value = rounding == "RN" or D == "f32", f"real_of<{D}, {rounding}>(a)"
    elif m["sat"]:
        value = f"limited<{CPP[D]}>(a)"
    if not known:
        raise unknown(m, o)
    if D == "f32":
        value = f"{'flushed' if m['ftz'] else ''}(f32({value}))"
    if D in REALS and m["sat"]:
        value = f"saturated({value})"
    flush = "flushed" if m["ftz"] and S == "f32" else ""
    return f"auto a = {flush}({w.value(o[1], S)});" + w.put(o[0], D, value)


def atomic(w: "FunctionWriter", m: re.Match[str], o: list[str]) -> str:
    kind, o = m["T"], ["_", *o] if m["base"] == "red" else o
    old = "unused" if o[0] == "_" else name_of(o[0])
    values = "".join(
        f"auto {name} = {w.value(v, kind)};" for name, v in zip("bc", o[2:], strict=False)
    )
    space, change = SPACES[m["space"]], f"[&](auto old) {{ return {ATOMIC[m['op']]}; }}"
    call = f"atomic<{space}, {CPP[kind]}>(t, {old}, {w.address(o[1])}, bounds, {change});"
    return f"static Bounds bounds; {values} {call}"


def call(w: "FunctionWriter", m: re.Match[str], o: list[str]) -> str:
    results = split(o[0].strip("()")) if o[0].startswith("(") else []
    name, *arguments = o[bool(results) :]
    if name == "__assertfail":
        return 'return emulator_trap(t, "a failed assertion");'
    if name not in w.functions:
        raise unknown(m, o)
    given = [*results, *(split(arguments[0].strip("()")) if arguments else [])]
    return f"{name_of(name)}(t{''.join(', ' + name_of(x) for x in given)});"


def barrier(w: "FunctionWriter", m: re.Match[str], o: list[str]) -> str:
    if o != ["0"]:
        raise unknown(m, o)
    return "emulator_block_barrier(t);"


SPACE = r"(\.(?P<space>global|shared|local|param|const)(::\w+)?)?"
TYPE = r"\.(?P<T>\w+)"
ACCESS = r"(\.volatile|\.weak|\.relaxed\.\w+)?" + SPACE
CACHING = r"(\.(nc|ca|cg|cs|lu|cv|wb|wt|L1::\w+|L2::\w+))*(\.v(?P<n>2|4))?"
SETP = r"setp\.(?P<compare>\w+?)(\.(?P<combine>and|or|xor))?(?P<ftz>\.ftz)?" + COMPARED
CVT = r"cvt(\.(?P<R>r[nzmp])(?P<i>i)?)?(?P<ftz>\.ftz)?(?P<sat>\.sat)?" + TO_OTHER
ATOM = r"(?P<base>atom|red)(\.relaxed)?(\.(cta|gpu|sys))?(\.(?P<space>global|shared))?"
RULES: tuple[tuple[re.Pattern[str], Rule], ...] = tuple(
    (re.compile(pattern), rule)
    for pattern, rule in (
        (r"mov\.(?P<T>[bsu]16|[bsu]32|[bsu]64|f32|f64|pred)", move),
        (r"ld" + ACCESS + CACHING + TYPE, load),
        (r"st" + ACCESS + CACHING + TYPE, store),
        (SETP.replace(r"\w+?", "|".join(COMPARE)), compare),
        (CVT, convert),
        (ATOM + rf"\.(?P<op>{'|'.join(ATOMIC)})(\.noftz)?" + TYPE, atomic),
        (r"call(\.uni)?", call),
        (r"(bar|barrier)(\.cta)?\.sync(\.aligned)?", barrier),
        (r"bar\.warp\.sync", lambda w, m, o: f"emulator_warp_barrier(t, {w.value(o[0], 'u32')});"),
        (r"bra(\.uni)?", lambda w, m, o: f"goto {name_of(o[0])};"),
        (r"ret|exit", lambda w, m, o: "return;"),
        (r"trap", lambda w, m, o: 'return emulator_trap(t, "a trap");'),
        # one thread of the device runs at a time, and sees what the others have written
        (r"membar\.(cta|gl|sys)|fence(\.(sc|acq_rel))?\.(cta|gpu|sys)", lambda w, m, o: ""),
    )
)
