"""Names, types and numbers of C++ for those of PTX."""

import re
from functools import cache

from emulator.ptx import BYTES, UnknownPtxError

BITS = {t: f"u{8 * n}" for t, n in BYTES.items()}
CPP = {
    **{t: t for t in BYTES if re.fullmatch(r"[us]\d+|b?f\d+", t)},
    **{t: BITS[t] for t in ("b8", "b16", "b32", "b64", "f16x2", "bf16x2")},
    "pred": "bool",
}
"""The types of C++: those of bits, and those of arithmetic."""

WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


@cache
def name_of(name: str) -> str:
    """A name of C++ for one of PTX."""
    return "v" + re.sub(r"\W", "_", name)


def constant(text: str, kind: str) -> str:
    """A number; its bits where the type is not one of reals."""
    if found := re.fullmatch(r"0[fF]([0-9A-Fa-f]{8})", text):
        return f"f32_of(0x{found[1]}u)" if kind == "f32" else f"0x{found[1]}u"
    if found := re.fullmatch(r"0[dD]([0-9A-Fa-f]{16})", text):
        return f"f64_of(0x{found[1]}ul)" if kind == "f64" else f"0x{found[1]}ul"
    if not re.fullmatch(r"-?(0x[0-9A-Fa-f]+|[1-9]\d*|0)U?", text):
        raise UnknownPtxError(f"unknown number in PTX: {text}")
    number = text.removesuffix("U") + ("l" if text[0] == "-" else "ul")
    return (
        f"get<{CPP[kind]}>(u16({number}))" if kind in ("f16", "bf16") else f"{CPP[kind]}({number})"
    )


def split(text: str) -> list[str]:
    """Operands: commas within braces, brackets and parentheses do not separate them."""
    return [p.strip() for p in re.split(r",(?![^{\[(]*[}\])])", text) if p.strip()]


def registers(name: str) -> list[str]:
    """%r<3> is %r0, %r1, %r2."""
    found = re.fullmatch(r"(.*)<(\d+)>", name)
    return [f"{found[1]}{k}" for k in range(int(found[2]))] if found else [name]
