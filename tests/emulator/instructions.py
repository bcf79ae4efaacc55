"""The table of PTX's instructions that compute one value: rows of a pattern of opcodes, and C++.

a, b, c and d are the operands as numbers of their types, which `operands` names where they are not
all of type T; the functions are in cxx/device.h. What no row knows is an error with its name.
Approximate instructions (ex2.approx) are rounded correctly here, and so better than on a GPU.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from emulator.ptx import UnknownPtxError

INT = r"\.(?P<T>[su](?:16|32|64))"
BITS = r"\.(?P<T>b(?:16|32|64))"
REAL = r"(?P<ftz>\.ftz)?(?P<sat>\.sat)?\.(?P<T>f32|f64)"
FLOAT = r"(?P<ftz>\.ftz)?\.(?P<T>f32)"
CARRY = r"\.(?P<T>u32|u64)"
ANY = r"\.(?P<T>[bsu](?:16|32|64)|f32|f64)"
COMPARED = r"\.(?P<T>[bsu](?:16|32|64)|f16|bf16|f32|f64)"
LANES = "u32 u32 u32 u32"
TO_OTHER = r"\.(?P<D>[su](?:8|16|32|64)|b?f16|f32|f64)\.(?P<S>[su](?:8|16|32|64)|b?f16|f32|f64)"


class Row(NamedTuple):
    """A pattern of opcodes, the value in C++, and types: of operands, and of the result."""

    pattern: str
    value: str
    operands: str = ""
    result: str = "T"


ROWS = (
    # integers
    Row(r"add" + INT, "a + b"),
    Row(r"sub" + INT, "a - b"),
    Row(r"mul\.lo" + INT, "a * b"),
    Row(r"mul\.hi" + INT, "high_part(a, b)"),
    Row(r"mul\.wide" + INT, "W(a) * W(b)", result="W"),
    Row(r"mad\.lo" + INT, "a * b + c"),
    Row(r"mad\.wide" + INT, "W(a) * W(b) + c", "T T W", "W"),
    Row(r"div" + INT, "divided(a, b)"),
    Row(r"rem" + INT, "remainder(a, b)"),
    Row(r"neg\.(?P<T>s16|s32|s64)", "opposite(a)"),
    Row(r"abs\.(?P<T>s16|s32|s64)", "size_of(a)"),
    Row(r"min" + INT, "least(a, b)"),
    Row(r"max" + INT, "largest(a, b)"),
    # with carry
    Row(r"add\.cc" + CARRY, "add_with_carry(a, b, 0, carry)"),
    Row(r"addc\.cc" + CARRY, "add_with_carry(a, b, carry, carry)"),
    Row(r"addc" + CARRY, "add_with_carry(a, b, carry, unused)"),
    Row(r"sub\.cc" + CARRY, "subtract_with_borrow(a, b, 0, carry)"),
    Row(r"subc\.cc" + CARRY, "subtract_with_borrow(a, b, carry, carry)"),
    Row(r"subc" + CARRY, "subtract_with_borrow(a, b, carry, unused)"),
    Row(r"mad\.lo\.cc" + CARRY, "add_with_carry(T(a * b), c, 0, carry)"),
    Row(r"madc\.lo\.cc" + CARRY, "add_with_carry(T(a * b), c, carry, carry)"),
    Row(r"madc\.hi\.cc" + CARRY, "add_with_carry(high_part(a, b), c, carry, carry)"),
    Row(r"madc\.hi" + CARRY, "add_with_carry(high_part(a, b), c, carry, unused)"),
    # bits
    Row(r"and\.(?P<T>b16|b32|b64|pred)", "a & b"),
    Row(r"or\.(?P<T>b16|b32|b64|pred)", "a | b"),
    Row(r"xor\.(?P<T>b16|b32|b64|pred)", "a ^ b"),
    Row(r"not" + BITS, "~a"),
    Row(r"not\.(?P<T>pred)", "!a"),
    Row(r"shl" + BITS, "shifted_left(a, b)", "T u32"),
    Row(r"shr\.(?P<T>[bsu](?:16|32|64))", "shifted_right(a, b)", "T u32"),
    Row(r"prmt\.(?P<T>b32)", "permuted(a, b, c)"),
    Row(r"bfi\.(?P<T>b32|b64)", "bit_field_inserted(a, b, c, d)", "T T u32 u32"),
    Row(r"clz\.(?P<T>b32|b64)", "leading_zeros(a)", result="u32"),
    Row(r"popc\.(?P<T>b32|b64)", "__builtin_popcountl(a)", result="u32"),
    Row(r"selp" + ANY, "c ? a : b", "T T pred"),
    # addresses: those of shared memory begin at 0 for each block
    Row(r"cvta(\.to)?\.(global|local|const|param)\.u64", "a", "u64", "u64"),
    Row(r"cvta\.shared\.u64", "a + (u64)t.shared", "u64", "u64"),
    Row(r"cvta\.to\.shared\.u64", "a - (u64)t.shared", "u64", "u64"),
    # lanes of a warp
    Row(r"shfl\.sync\.up\.b32", "shuffled<UP>(t, a, b, c, d, ok)", LANES, "u32"),
    Row(r"shfl\.sync\.down\.b32", "shuffled<DOWN>(t, a, b, c, d, ok)", LANES, "u32"),
    Row(r"shfl\.sync\.bfly\.b32", "shuffled<BUTTERFLY>(t, a, b, c, d, ok)", LANES, "u32"),
    Row(r"shfl\.sync\.idx\.b32", "shuffled<INDEX>(t, a, b, c, d, ok)", LANES, "u32"),
    Row(r"vote\.sync\.ballot\.b32", "ballot(t, a, b)", "pred u32", "u32"),
    Row(r"vote\.sync\.any\.pred", "ballot(t, a, b) != 0", "pred u32", "pred"),
    Row(r"vote\.sync\.all\.pred", "ballot(t, !a, b) == 0", "pred u32", "pred"),
    # reals
    Row(r"add(\.rn)?" + REAL, "a + b"),
    Row(r"sub(\.rn)?" + REAL, "a - b"),
    Row(r"mul(\.rn)?" + REAL, "a * b"),
    Row(r"fma\.rn" + REAL, "fma_by<RN>(a, b, c)"),
    Row(r"fma\.rm" + FLOAT, "fma_by<RM>(a, b, c)"),
    Row(r"add\.rz" + FLOAT, "fma_by<RZ>(a, T(1), b)"),
    Row(r"div\.(rn|full|approx)" + REAL, "a / b"),
    Row(r"rcp\.(rn|approx)" + REAL, "T(1) / a"),
    Row(r"sqrt\.(rn|approx)" + REAL, "square_root(a)"),
    Row(r"rsqrt\.approx" + REAL, "1 / __builtin_sqrt(a)"),
    Row(r"sin\.approx" + REAL, "__builtin_sinf(a)"),
    Row(r"cos\.approx" + REAL, "__builtin_cosf(a)"),
    Row(r"ex2\.approx" + REAL, "__builtin_exp2f(a)"),
    Row(r"lg2\.approx" + REAL, "__builtin_log2f(a)"),
    Row(r"neg" + REAL, "opposite(a)"),
    Row(r"abs" + REAL, "size_of(a)"),
    Row(r"min" + REAL, "least(a, b)"),
    Row(r"max" + REAL, "largest(a, b)"),
    Row(r"copysign\.(?P<T>f32|f64)", "with_sign(b, a)"),
    Row(r"set\.nan\.(?P<T>f16|bf16)\.(?P=T)", "a != a || b != b"),
)

COMPARE = {
    "eq": "a == b",
    "ne": "a < b || a > b",
    "lt": "a < b",
    "le": "a <= b",
    "gt": "a > b",
    "ge": "a >= b",
    "equ": "!(a < b || a > b)",
    "neu": "a != b",
    "ltu": "!(a >= b)",
    "leu": "!(a > b)",
    "gtu": "!(a <= b)",
    "geu": "!(a < b)",
    "num": "a == a && b == b",
    "nan": "a != a || b != b",
}
"""Comparisons; with u those that are true of nan too."""

ATOMIC = {
    "add": "old + b",
    "inc": "old >= b ? 0 : old + 1",
    "exch": "b",
    "cas": "old == b ? c : old",
    "min": "least(old, b)",
    "max": "largest(old, b)",
}
"""What is written where `old` was."""

SPECIAL = {
    **{f"%tid.{axis}": f"t.index.{axis}" for axis in "xyz"},
    **{f"%ntid.{axis}": f"t.launch->block.{axis}" for axis in "xyz"},
    **{f"%ctaid.{axis}": f"t.block_index.{axis}" for axis in "xyz"},
    **{f"%nctaid.{axis}": f"t.launch->grid.{axis}" for axis in "xyz"},
    "%laneid": "t.lane",
    "%lanemask_eq": "(1u << t.lane)",
    "%lanemask_lt": "((1u << t.lane) - 1)",
    "%lanemask_le": "((2u << t.lane) - 1)",
    "%lanemask_gt": "~((2u << t.lane) - 1)",
    "%lanemask_ge": "~((1u << t.lane) - 1)",
    "%dynamic_smem_size": "t.launch->dynamic_shared",
    "WARP_SZ": "WARP",
}
"""Registers that say where a thread is."""


@lru_cache(maxsize=4096)
def row_of(opcode: str) -> tuple[Row, dict[str, str | None]]:
    """The row that knows an instruction, and the groups of its pattern."""
    for row in ROWS:
        if found := re.fullmatch(row.pattern, opcode):
            return row, found.groupdict()
    raise UnknownPtxError(f"unknown instruction of PTX: {opcode}")
