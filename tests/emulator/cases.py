"""What each instruction of PTX that computes a value is to give, by NumPy and Python's integers."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

SIZES = (8, 16, 32, 64)
TYPES = {
    **{f"{kind}{n}": f"u{n // 8}" for kind in "ub" for n in SIZES},
    **{f"s{n}": f"i{n // 8}" for n in SIZES},
    "f16": "e",
    "bf16": ml_dtypes.bfloat16,
    "f32": "f",
    "f64": "d",
    "pred": "?",
}


class Case(NamedTuple):
    """An instruction, the types of its operands and of its result, and what it computes."""

    opcode: str
    operands: str
    result: str
    value: Callable[..., Any]


def wrapped(value: int, kind: str) -> int:
    """An integer as the type has it."""
    n = int(kind[1:])
    value &= (1 << n) - 1
    return value - (1 << n) if kind[0] == "s" and value >> (n - 1) else value


def by_integers(f: Callable[..., int], kind: str) -> Callable[..., np.ndarray]:
    """Of integers of Python, one by one."""

    def value(*arrays: np.ndarray) -> np.ndarray:
        rows = zip(*(a.tolist() for a in arrays), strict=True)
        return np.array([wrapped(f(*row), kind) for row in rows], TYPES[kind])

    return value


def integers(
    name: str, kinds: str, f: Callable[..., int], result: str = "", operands: str = ""
) -> list[Case]:
    found = []
    for kind in kinds.split():
        r = result or kind
        found.append(
            Case(f"{name}.{kind}", (operands or "T T").replace("T", kind), r, by_integers(f, r))
        )
    return found


def reals(name: str, f: Callable[..., Any], n: int = 2, kinds: str = "f32 f64") -> list[Case]:
    return [Case(f"{name}.{k}", " ".join([k] * n), k, f) for k in kinds.split()]


def flushing(f: Callable[..., Any]) -> Callable[..., Any]:
    def flush(a: np.ndarray) -> np.ndarray:
        return np.where(abs(a) < np.finfo("f").tiny, np.copysign(np.float32(0), a), a)

    return lambda *arrays: flush(f(*map(flush, arrays)))


def quotient(a: int, b: int) -> int:
    """Towards zero, as C has it."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else -1


def permuted(a: int, b: int, s: int) -> int:
    source = (b << 32 | a).to_bytes(8, "little")
    chosen = [(source[s >> 4 * i & 7], s >> 4 * i & 8) for i in range(4)]
    return int.from_bytes(
        bytes((255 if v & 128 else 0) if sign else v for v, sign in chosen), "little"
    )


def inserted(a: int, b: int, start: int, length: int) -> int:
    start, length = start & 255, length & 255
    mask = ((1 << length) - 1) << start
    return (b & ~mask) | (a << start & mask)


def fused_towards(end: float, *arrays: np.ndarray) -> np.ndarray:
    """a b + c, exactly, rounded towards a number."""
    found = []
    for a, b, c in zip(*(x.tolist() for x in arrays), strict=True):
        if not np.isfinite([a, b, c]).all():
            found.append(np.float32(a * b + c))
            continue
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        near = np.float32(float(exact)) if exact else np.float32(-0.0 if end < 0 else 0.0)
        if exact:
            above = near == np.inf or (near > -np.inf and Fraction(float(near)) > exact)
            below = near == -np.inf or (near < np.inf and Fraction(float(near)) < exact)
            down = end < 0 or (end == 0 and exact > 0)
            if (above and down) or (below and not down):
                near = np.nextafter(near, np.float32(-np.inf if above else np.inf))
        found.append(near)
    return np.array(found, "f")


def towards(a: np.ndarray, end: float) -> np.ndarray:
    """float32 from float64, rounded towards a number."""
    with np.errstate(all="ignore"):
        near = a.astype("f")
        wrong = (near < a) if end > 0 else (near > a) if end < 0 else (abs(near) > abs(a))
        return np.where(wrong, np.nextafter(near, np.float32(end)), near)


def whole_as(kind: str, f: Callable[..., Any], a: np.ndarray) -> np.ndarray:
    """Integers from reals: the nearest of the type; nan is 0, of 64 bits 2^63."""
    limits = np.iinfo(TYPES[kind])
    of_nan = wrapped(1 << 63, kind) if kind[1:] == "64" else 0
    limited = (
        of_nan
        if v != v
        else int(
            max(limits.min, min(limits.max, int(v) if abs(v) < 1e30 else int(np.sign(v) * 1e30)))
        )
        for v in f(a.astype("d"))
    )
    return np.array([*limited], TYPES[kind])


ALL = "u16 s16 u32 s32 u64 s64"
CASES = [
    *integers("add", ALL, lambda a, b: a + b),
    *integers("sub", ALL, lambda a, b: a - b),
    *integers("mul.lo", ALL, lambda a, b: a * b),
    *(c for k in ALL.split() for c in integers("mul.hi", k, lambda a, b, n=int(k[1:]): a * b >> n)),
    *(
        c
        for k in ("u16", "s16", "u32", "s32")
        for c in integers("mul.wide", k, lambda a, b: a * b, k[0] + str(2 * int(k[1:])))
    ),
    *integers("mad.lo", ALL, lambda a, b, c: a * b + c, operands="T T T"),
    *integers("mad.wide", "u32", lambda a, b, c: a * b + c, "u64", "T T u64"),
    *integers("mad.wide", "s32", lambda a, b, c: a * b + c, "s64", "T T s64"),
    *integers("div", ALL, quotient),
    *integers("rem", ALL, lambda a, b: a - quotient(a, b) * b if b else a),
    *integers("neg", "s16 s32 s64", lambda a: -a, operands="T"),
    *integers("abs", "s16 s32 s64", abs, operands="T"),
    *integers("min", ALL, min),
    *integers("max", ALL, max),
    *integers("and", "b16 b32 b64", lambda a, b: a & b),
    *integers("or", "b16 b32 b64", lambda a, b: a | b),
    *integers("xor", "b16 b32 b64", lambda a, b: a ^ b),
    *integers("not", "b16 b32 b64", lambda a: ~a, operands="T"),
    *integers("shl", "b16 b32 b64", lambda a, n: a << n if n < 64 else 0, operands="T u32"),
    *integers(
        "shr", "b16 u16 s16 b32 u32 s32 b64 u64 s64", lambda a, n: a >> min(n, 64), operands="T u32"
    ),
    *integers("prmt", "b32", permuted, operands="T T T"),
    *integers("bfi", "b32 b64", inserted, operands="T T u32 u32"),
    *(
        Case(f"selp.{k}", f"{k} {k} pred", k, lambda a, b, p: np.where(p, a, b))
        for k in ("b16", "s32", "b64", "f32", "f64")
    ),
    *(
        Case(f"{op}.pred", "pred pred", "pred", f)
        for op, f in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor))
    ),
    Case("not.pred", "pred", "pred", np.logical_not),
    *integers("clz", "b32", lambda a: 32 - a.bit_length(), "b32", "T"),
    *integers("clz", "b64", lambda a: 64 - a.bit_length(), "b32", "T"),
    *integers("popc", "b32 b64", int.bit_count, "b32", "T"),
    *reals("add", np.add),
    *reals("sub", np.subtract),
    *reals("mul", np.multiply),
    *reals("add.rn.ftz", flushing(np.add), kinds="f32"),
    *reals("mul.ftz", flushing(np.multiply), kinds="f32"),
    *reals("add.sat", lambda a, b: np.clip(np.nan_to_num(a + b, nan=0), 0, 1), kinds="f32"),
    *reals("div.rn", np.divide),
    *reals("div.full", np.divide, kinds="f32"),
    *reals("rcp.rn", lambda a: 1 / a, 1),
    *reals("sqrt.rn", np.sqrt, 1),
    *reals("neg", np.negative, 1),
    *reals("abs", abs, 1),
    *reals("min", lambda a, b: np.where(a == b, np.where(np.signbit(a), a, b), np.fmin(a, b))),
    *reals("max", lambda a, b: np.where(a == b, np.where(np.signbit(a), b, a), np.fmax(a, b))),
    *reals("copysign", lambda a, b: np.copysign(b, a)),
    *reals("fma.rn", lambda a, b, c: (a.astype("d") * b + c).astype("f"), 3, "f32"),
    Case("add.rz.f32", "f32 f32", "f32", lambda a, b: fused_towards(0, a, np.ones_like(a), b)),
    Case("fma.rm.f32", "f32 f32 f32", "f32", partial(fused_towards, -np.inf)),
    *(
        Case(
            f"set.nan.{k}.{k}", f"{k} {k}", k, lambda a, b: (np.isnan(a) | np.isnan(b)).astype("f")
        )
        for k in ("f16", "bf16")
    ),
    *(
        Case(f"setp.{name}.{k}", f"{k} {k}", "pred", f)
        for k in ("s32", "u64", "f32", "f64", "f16")
        for name, f in (
            ("eq", np.equal),
            ("lt", np.less),
            ("le", np.less_equal),
            ("gt", np.greater),
            ("ge", np.greater_equal),
        )
    ),
    *(
        Case(f"setp.{name}.{k}", f"{k} {k}", "pred", f)
        for k in ("f32", "f64")
        for name, f in (
            ("neu", np.not_equal),
            ("ltu", lambda a, b: ~(a >= b)),
            ("gtu", lambda a, b: ~(a <= b)),
            ("equ", lambda a, b: (a == b) | (a != a) | (b != b)),
            ("ne", lambda a, b: (a < b) | (a > b)),
            ("num", lambda a, b: (a == a) & (b == b)),
            ("nan", lambda a, b: (a != a) | (b != b)),
        )
    ),
    *(Case(f"setp.{name}.s32", "s32 s32", "pred", f) for name, f in (("ne", np.not_equal),)),
    *(
        Case(f"cvt.{d}.{s}", s, d, lambda a, d=d: a.astype(TYPES[d]))
        for d in ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
        for s in ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
        if d != s
    ),
    *(
        Case(f"cvt.rn.{d}.{s}", s, d, lambda a, d=d: a.astype(TYPES[d]))
        for d in ("f32", "f64")
        for s in ("u8", "s16", "u32", "s32", "u64", "s64")
    ),
    *(
        Case(f"cvt.{d}.{s}", s, d, lambda a, d=d: a.astype(TYPES[d]))
        for d, s in (("f64", "f32"), ("f32", "f16"), ("f32", "bf16"))
    ),
    *(
        Case(f"cvt.rn.{d}.{s}", s, d, lambda a, d=d: a.astype(TYPES[d]))
        for d, s in (
            ("f32", "f64"),
            ("f16", "f32"),
            ("bf16", "f32"),
            ("f16", "s32"),
            ("f16", "s64"),
        )
    ),
    *(
        Case(f"cvt.{r}.f32.f64", "f64", "f32", partial(towards, end=end))
        for r, end in (("rz", 0), ("rm", -np.inf), ("rp", np.inf))
    ),
    *(
        Case(f"cvt.{r}.{k}.{k}", k, k, f)
        for k in ("f32", "f64")
        for r, f in (("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil))
    ),
    *(
        Case(f"cvt.{r}.{d}.{s}", s, d, partial(whole_as, d, f))
        for s in ("f32", "f64")
        for d in ("s32", "u32", "s64", "u64")
        for r, f in (("rni", np.rint), ("rzi", np.trunc))
    ),
    *integers("cvt.sat.s8", "s32", lambda a: max(-128, min(127, a)), "s8", "T"),
    *integers("cvt.sat.u8", "s32", lambda a: max(0, min(255, a)), "u8", "T"),
]
"""The instructions that compute a value of one thread."""
