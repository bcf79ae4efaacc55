"""Each instruction of PTX that the emulator knows, in a kernel of its own."""

import re

import numpy as np
import pytest

from emulator import machine, test_machine
from emulator.cases import CASES, TYPES, Case
from emulator.direct import CudaError, DeviceArray, Kernels
from emulator.instructions import ROWS
from emulator.ptx import UnknownPtxError
from emulator.translate import translate

needs_compiler = pytest.mark.usefixtures("compiler")

THREADS = 128
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, np.inf, -np.inf, np.nan, 1e-40, 3e38, 65504, 2049]


def numbers(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Of a type: some of the ends of its range, and random ones."""
    dtype = np.dtype(TYPES[kind])
    if kind == "pred":
        return rng.integers(0, 2, THREADS).astype(bool)
    if "f" not in kind:
        values = rng.integers(0, 256, (THREADS, dtype.itemsize), "u1").view(dtype).ravel()
        limits = np.iinfo(dtype)
        values[:8] = [0, 1, 2, 3, 31, 7, limits.min, limits.max]
        values[::5] >>= dtype.type(4 * dtype.itemsize)
        return rng.permutation(values)
    with np.errstate(all="ignore"):
        values = rng.standard_normal(THREADS) * 10.0 ** rng.integers(-6, 7, THREADS)
        values[: len(SPECIAL)] = SPECIAL
        return rng.permutation(values).astype(dtype)


def bits_of(kind: str) -> str:
    return "b8" if kind == "pred" else f"b{8 * np.dtype(TYPES[kind]).itemsize}"


def kernel(name: str, case: Case) -> str:
    """A kernel in which each thread carries out the instruction once."""
    parameters = ", ".join(f".param .u64 {p}" for p in ("out", *"abcd"))
    code = [f".visible .entry {name}({parameters})"]
    code += ["{ .reg .b32 %i; .reg .b64 %p; .reg .b64 %o; .reg .pred %is; .reg .b16 %h;"]
    code += ["mov.u32 %i, %tid.x;"]
    registers = []
    for letter, kind in zip("abcd", case.operands.split(), strict=False):
        bits = bits_of(kind)
        n = int(bits[1:]) // 8
        register = f"b{max(16, 8 * n)}"
        code += [f".reg .{register} %{letter}; ld.param.u64 %p, [{letter}];"]
        load = f"ld.global.{kind if n == 1 else bits} %{letter}, [%p];"
        code += [f"mul.wide.u32 %o, %i, {n}; add.s64 %p, %p, %o; {load}"]
        registers.append(f"%{letter}")
    bits = bits_of(case.result)
    n = int(bits[1:]) // 8
    code += [f".reg .b{max(16, 8 * n)} %r; ld.param.u64 %p, [out];"]
    code += [f"mul.wide.u32 %o, %i, {n}; add.s64 %p, %p, %o;"]
    target = "%is" if case.result == "pred" else "%r"
    code += [f"{case.opcode} {', '.join([target, *registers])};"]
    code += ["selp.u16 %r, 1, 0, %is;"] * (case.result == "pred")
    return "\n".join([*code, f"st.global.{bits} [%p], %r; ret; }}"])


@pytest.fixture(scope="module")
def kernels(compiler: None) -> Kernels:
    return Kernels("\n".join(kernel(f"case_{i}", case) for i, case in enumerate(CASES)))


@needs_compiler
@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.opcode for c in CASES])
def test_an_instruction_gives_what_numpy_gives(number: int, kernels: Kernels) -> None:
    case, rng = CASES[number], np.random.default_rng(number)
    operands = [numbers(kind, rng) for kind in case.operands.split()]
    out = DeviceArray(np.zeros(THREADS, TYPES[case.result]))
    arrays = [DeviceArray(a) for a in operands]
    kernels.launch(f"case_{number}", [out, *arrays, *[out] * (4 - len(arrays))], THREADS)
    with np.errstate(all="ignore"):
        expected = np.asarray(case.value(*operands)).astype(TYPES[case.result])
    found = out.numpy()
    same = (found == expected) & (np.signbit(found) == np.signbit(expected))
    same |= (found != found) & (expected != expected)
    rows = [(*(a[i] for a in operands), found[i], expected[i]) for i in np.flatnonzero(~same)]
    assert not rows, f"{len(rows)} of {THREADS}, such as {rows[:3]}"


CARRY = """
.visible .entry sums_T(.param .u64 out, .param .u64 in) {
    .reg .b64 %o; .reg .b64 %i; .reg .T %a<3>; .reg .T %b<3>; .reg .T %c<3>;
    ld.param.u64 %o, [out]; ld.param.u64 %i, [in];
    LOAD
    add.cc.T %c0, %a0, %b0; addc.cc.T %c1, %a1, %b1; addc.T %c2, %a2, %b2; STORE0
    sub.cc.T %c0, %a0, %b0; subc.cc.T %c1, %a1, %b1; subc.T %c2, %a2, %b2; STORE1
    mad.lo.cc.T %c0, %a0, %b0, %a0; madc.hi.cc.T %c1, %a0, %b0, %a1; addc.T %c2, %a2, 0;
    mad.lo.cc.T %c1, %a1, %b0, %c1; madc.hi.T %c2, %a1, %b0, %c2; STORE2
    mad.lo.cc.T %c0, %a0, %b0, %a0; madc.lo.cc.T %c1, %a1, %b1, %a1; addc.T %c2, %a2, 0; STORE3
    ret;
}
"""


def carries(kind: str) -> str:
    n = int(kind[1:]) // 8
    load = "".join(
        f"ld.global.{kind} %{x}{i}, [%i+{n * (3 * k + i)}];"
        for k, x in enumerate("ab")
        for i in range(3)
    )
    text = CARRY.replace("T", kind).replace(f"S{kind}ORE", "STORE").replace("LOAD", load)
    for row in range(4):
        store = "".join(f"st.global.{kind} [%o+{n * (3 * row + i)}], %c{i};" for i in range(3))
        text = text.replace(f"STORE{row}", store)
    return text


@needs_compiler
@pytest.mark.parametrize("kind", ["u32", "u64"])
def test_carries_make_sums_and_products_of_long_numbers(kind: str) -> None:
    n = int(kind[1:])
    limbs = np.random.default_rng(0).integers(0, 1 << n, 6, TYPES[kind], endpoint=False) | np.array(
        3 << (n - 2), TYPES[kind]
    )
    out, given = DeviceArray(np.zeros(12, TYPES[kind])), DeviceArray(limbs)
    Kernels(carries(kind)).launch(f"sums_{kind}", [out, given], 1)
    joined = [sum(int(v) << n * i for i, v in enumerate(row)) for row in out.numpy().reshape(4, 3)]
    a0, a1, a2, b0, b1, b2 = map(int, limbs)
    a, b = a0 | a1 << n | a2 << 2 * n, b0 | b1 << n | b2 << 2 * n
    lows = a0 * b0 % (1 << n) | a1 * b1 % (1 << n) << n
    expected = [a + b, a - b, (a0 | a1 << n) * b0 + a, lows + a]
    assert joined == [v & (1 << 3 * n) - 1 for v in expected]


APPROXIMATE = {
    "sin.approx.f32": np.sin,
    "cos.approx.f32": np.cos,
    "ex2.approx.ftz.f32": np.exp2,
    "lg2.approx.ftz.f32": np.log2,
    "rsqrt.approx.f32": lambda a: 1 / np.sqrt(a),
    "rcp.approx.ftz.f32": lambda a: 1 / a,
    "sqrt.approx.f32": np.sqrt,
}
"""They differ between GPUs in their last digits."""


@needs_compiler
def test_approximations_are_close() -> None:
    cases = [Case(op, op[-3:], op[-3:], f) for op, f in APPROXIMATE.items()]
    kernels = Kernels("\n".join(kernel(f"case_{i}", case) for i, case in enumerate(cases)))
    for i, case in enumerate(cases):
        x = np.linspace(0.1, 5, THREADS).astype(TYPES[case.result])
        out = DeviceArray(np.zeros_like(x))
        kernels.launch(f"case_{i}", [out, DeviceArray(x), out, out, out], THREADS)
        np.testing.assert_allclose(out.numpy(), case.value(x), rtol=1e-6, atol=1e-7)


def test_each_row_of_the_table_has_a_case() -> None:
    opcodes = [
        *(case.opcode for case in CASES),
        *APPROXIMATE,
        *re.findall(r"\w+\.[\w.]+", carries("u32") + test_machine.KERNELS),
    ]
    missing = [
        row.pattern
        for row in ROWS
        if not any(re.fullmatch(row.pattern, opcode) for opcode in opcodes)
    ]
    assert missing == [], missing


@pytest.mark.parametrize(
    "line",
    [
        "fma.rz.f64 %d1, %d1, %d1, %d1;",
        "wgmma.fence.sync.aligned;",
        "bar.sync 1, 64;",
        "mov.u32 %r1, %clock;",
        "cvt.rn.bf16.u64 %h1, %rd1;",
        "ld.global.v8.f32 {%f1}, [%rd1];",
        "setp.equ.s32 %p1, %r1, %r1;",
    ],
)
def test_what_is_not_known_is_an_error_with_its_name(line: str) -> None:
    kinds = {"f32": "f", "b32": "r", "b64": "rd", "b16": "h", "pred": "p", "f64": "d"}
    registers = "".join(f".reg .{kind} %{name}<2>; " for kind, name in kinds.items())
    name = "%clock" if "clock" in line else line.split()[0].rstrip(";")
    with pytest.raises(UnknownPtxError, match=re.escape(name)):
        translate(f".entry k() {{ {registers} {line} ret; }}")


@needs_compiler
def test_a_module_that_is_not_known_is_refused_and_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(CudaError, match="cudaErrorInvalidPtx"):
        Kernels(".entry k() { wgmma.fence.sync.aligned; ret; }")
    assert machine.problems() == ["unknown instruction of PTX: wgmma.fence.sync.aligned"]
    assert "wgmma.fence.sync.aligned" in capsys.readouterr().err
