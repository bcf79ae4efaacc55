"""The C++ of one function of PTX: its statements, one by one."""

import re
from collections.abc import Iterator

from emulator.cpp import BITS, CPP, WIDE, constant, name_of, registers, split
from emulator.instructions import SPECIAL, Row, row_of
from emulator.ptx import VARIABLE, Function, Module, UnknownPtxError, Variable, variable
from emulator.rules import RULES

SHARED_BASE = 1024
"""Where the shared memory of a block begins."""


def place_shared(variables: list[Variable], at: int) -> tuple[dict[str, int | None], int]:
    """Offsets of shared variables, and where they end; None is behind all of a kernel."""
    offsets: dict[str, int | None] = {}
    for v in (v for v in variables if v.space == "shared"):
        at = -(-at // max(v.align, 16)) * max(v.align, 16)
        offsets[v.name] = None if v.count is None else at
        at += v.nbytes
    return offsets, -(-at // 16) * 16


class FunctionWriter:
    """A function, and the names that it has declared so far."""

    def __init__(
        self, module: Module, f: Function, shared: dict[str, int | None], end: int
    ) -> None:
        self.function, self.shared_end, self._shared = f, end, dict(shared)
        self._memory = {v.name for v in module.variables if v.space in ("global", "const")}
        self._memory |= {v.name for v in [*f.results, *f.parameters]}
        self._registers: set[str] = set()
        self.functions = {g.name for g in module.functions}

    def lines(self) -> Iterator[str]:
        """The statements."""
        f = self.function
        for k, v in enumerate(f.parameters if f.is_entry else ()):
            yield f"char* {name_of(v.name)} = (char*)t.launch->parameters[{k}];"
        yield "u32 carry = 0, unused = 0; bool ok = false;"
        yield from map(self._statement, f.statements)

    def _statement(self, text: str) -> str:
        if text in ("{", "}", ""):
            return text
        if text.endswith(":"):
            return f"{name_of(text[:-1].strip())}:;"
        if text.startswith("."):
            return self._directive(text)
        guard = re.match(r"@(!?)(\S+) (.*)", text)
        opcode, _, rest = (guard[3] if guard else text).partition(" ")
        code = self._instruction(opcode, split(rest))
        return f"if ({guard[1]}{name_of(guard[2])}) {{ {code} }}" if guard else f"{{ {code} }}"

    def _directive(self, text: str) -> str:
        if text.startswith((".pragma", ".loc ")):
            return ""
        if found := re.fullmatch(r"\.reg \.(\w+) (.*)", text):
            names = [n for name in split(found[2]) for n in registers(name)]
            if found[1] in CPP:
                self._registers.update(names)
                kind = "bool" if found[1] == "pred" else BITS[found[1]]
                return f"{kind} " + ", ".join(f"{name_of(n)} = 0" for n in names) + ";"
        found = VARIABLE.fullmatch(text)
        if not found:
            raise UnknownPtxError(f"unknown directive of PTX: {text}")
        v = variable(found)
        if v.space == "shared":
            offsets, self.shared_end = place_shared([v], self.shared_end)
            self._shared |= offsets
            return ""
        self._memory.add(v.name)
        return f"alignas(16) char {name_of(v.name)}[{v.nbytes}];"

    # ---- operands

    def value(self, text: str, kind: str) -> str:
        """An operand as a number of this type."""
        if text.startswith("!"):
            return f"!{self.value(text[1:], kind)}"
        if text in SPECIAL:
            return f"get<{CPP[kind]}>({SPECIAL[text]})"
        if re.match(r"-?\d", text):
            return constant(text, kind)
        if symbol := self._symbol(text):
            return f"{CPP[kind]}({symbol})"
        if text not in self._registers:
            raise UnknownPtxError(f"unknown register of PTX: {text}")
        return f"get<{CPP[kind]}>({name_of(text)})"

    def _symbol(self, text: str) -> str:
        """The address of a variable, or the empty string."""
        name, _, offset = (p.strip() for p in text.partition("+"))
        if name in self._shared:
            begin = self._shared[name]
            behind = "(u64)(SHARED_BASE + t.launch->kernel->shared)"
            return f"({behind if begin is None else f'{begin}ul'} + ({offset or 0}))"
        return f"((u64){name_of(name)} + ({offset or 0}))" if name in self._memory else ""

    def address(self, text: str) -> str:
        """An operand in brackets."""
        inner = text.strip("[] ")
        base, _, offset = (p.strip() for p in inner.partition("+"))
        return self._symbol(inner) or f"({self.value(base, 'u64')} + ({offset or 0}))"

    def put(self, register: str, kind: str, value: str) -> str:
        """The assignment of a value to a register."""
        if register == "_":
            return f"(void)({value});"
        return f"put<{CPP[kind]}>({name_of(register)}, {value});"

    # ---- instructions

    def _instruction(self, opcode: str, operands: list[str]) -> str:
        for pattern, rule in RULES:
            if found := pattern.fullmatch(opcode):
                return rule(self, found, operands)
        return self._arithmetic(*row_of(opcode), opcode, operands)

    def _arithmetic(
        self, row: Row, groups: dict[str, str | None], opcode: str, operands: list[str]
    ) -> str:
        T = groups.get("T") or ""
        named = {"T": T, "W": WIDE.get(T, "")}
        given = operands[1:]
        kinds = [named.get(k, k) for k in row.operands.split()] or [T] * len(given)
        if len(kinds) != len(given) or (groups.get("ftz") and T not in ("f32", "f64")):
            raise UnknownPtxError(f"unknown instruction of PTX: {opcode} {', '.join(operands)}")
        flush = "flushed" if groups.get("ftz") and T == "f32" else ""
        code = "".join(
            f"auto {name} = {flush}({self.value(text, kind)}); "
            for name, text, kind in zip("abcd", given, kinds, strict=False)
        )
        R = named.get(row.result, row.result)
        value = re.sub(r"\b[TW](?=\()", lambda m: CPP[named[m[0]]], row.value)
        if R in ("f32", "f64"):
            value = f"{'saturated' if groups.get('sat') else ''}({flush}({R}({value})))"
        first, _, second = (p.strip() for p in operands[0].partition("|"))
        return code + self.put(first, R, value) + (self.put(second, "pred", "ok") if second else "")
