"""PTX to C++ for the host: a function for each kernel, in which registers are variables of bits.

    add.ftz.f32 %f3, %f1, %f2;
    auto a = flushed(get<f32>(v_f1)); auto b = flushed(get<f32>(v_f2));
    put<f32>(v_f3, flushed(a + b));

An instruction that no rule knows raises UnknownPtxError with its name.
"""

import re

from emulator.cpp import BITS, constant, name_of
from emulator.ptx import Function, UnknownPtxError, Variable, parse
from emulator.writer import SHARED_BASE, FunctionWriter, place_shared


def translate(text: str) -> str:
    """The C++ of a module in PTX."""
    module = parse(text)
    offsets, end = place_shared(module.variables, SHARED_BASE)
    writers = [FunctionWriter(module, f, offsets, end) for f in module.functions]
    bodies = ["\n".join([head(w.function), "{", *w.lines(), "}"]) for w in writers]
    kernels = [w for w in writers if w.function.is_entry]
    memory = [v for v in module.variables if v.space in ("global", "const")]
    return "\n".join(
        [
            '#include "device.h"',
            "struct Global { const char* name; void* address; u64 bytes; };",
            *map(definition, memory),
            *(head(f) + ";" for f in module.functions),
            *bodies,
            *(sizes(w.function) for w in kernels),
            'extern "C" const Kernel emulator_kernels[] = {',
            *(row(w.function, w.shared_end - SHARED_BASE) for w in kernels),
            "{}};",
            'extern "C" const Global emulator_globals[] = {',
            *(f'{{"{v.name}", {name_of(v.name)}, {v.nbytes}}},' for v in memory),
            "{}};",
        ]
    )


def head(f: Function) -> str:
    parameters = "".join(f", char* {name_of(v.name)}" for v in [*f.results, *f.parameters])
    return f"static void {name_of(f.name)}(Thread& t{'' if f.is_entry else parameters})"


def sizes(f: Function) -> str:
    numbers = ", ".join(str(p.nbytes) for p in f.parameters) or "0"
    return f"static const u32 sizes_{name_of(f.name)}[] = {{{numbers}}};"


def row(f: Function, shared: int) -> str:
    """A row of the table of kernels."""
    name = name_of(f.name)
    parts = f'"{f.name}", {name}, {len(f.parameters)}, sizes_{name}, {shared}, {f.most_threads}'
    return f"{{{parts}}},"


def definition(v: Variable) -> str:
    """A variable in the memory of the device."""
    if v.count is None or any(not re.match(r"[-\d]", text) for text in v.values):
        raise UnknownPtxError(f"unknown initial values in PTX: .{v.space} {v.name}")
    values = ", ".join(f"({BITS[v.type]}){constant(text, v.type)}" for text in v.values)
    return f"alignas({v.align}) static {BITS[v.type]} {name_of(v.name)}[{v.count}] = {{{values}}};"
