"""The peak of a core: multiply-adds in float32 in registers, measured in the same run."""

import ctypes
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

SOURCE = """
#ifdef __AVX512F__
#define BYTES 64
#elif defined __AVX__
#define BYTES 32
#else
#define BYTES 16
#endif
#define SUMS 12 /* enough to hide the time that one multiply-add takes, and they fit in registers */
typedef float Vector __attribute__((vector_size(BYTES)));

double multiply_adds(long rounds, float by) {
    Vector sum[SUMS], factor = {0}, term = {0};
    for (int i = 0; i < BYTES / 4; i++) factor[i] = by, term[i] = 1 - by;
    for (int i = 0; i < SUMS; i++) sum[i] = term;
    for (long r = 0; r < rounds; r++)
        _Pragma("GCC unroll 12") for (int i = 0; i < SUMS; i++) sum[i] = sum[i] * factor + term;
    for (int i = 1; i < SUMS; i++) sum[0] += sum[i];
    volatile float used = sum[0][0]; /* so that nothing is left out */
    (void)used;
    return 2.0 * SUMS * BYTES / 4 * rounds;
}
"""
ROUNDS = 100_000
TRIES = 200


@cache
def core_peak() -> float | None:
    """Operations a second of one core, the best of many short measurements; None without `cc`."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "peak.c"), Path(folder, "peak.so")
        source.write_text(SOURCE)
        flags = "-O3", "-march=native", "-mprefer-vector-width=512", "-ffp-contract=fast"
        try:
            subprocess.run(
                ["cc", *flags, "-shared", "-fPIC", "-o", library, source],
                check=True,
                capture_output=True,
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        multiply_adds = ctypes.CDLL(str(library)).multiply_adds
    multiply_adds.restype, multiply_adds.argtypes = ctypes.c_double, (ctypes.c_long, ctypes.c_float)
    best = 0.0
    for _ in range(TRIES):
        start = time.perf_counter()
        operations = multiply_adds(ROUNDS, 0.5)
        best = max(best, operations / (time.perf_counter() - start))
    return best


def rates(operations: float, seconds: float) -> dict[str, float]:
    """The fields of a row: billions of operations a second, and their share of the core's peak."""
    row = {"gflops": operations / seconds / 1e9}
    if (peak := core_peak()) is not None:
        row["of_peak"] = operations / seconds / peak
    return row


def peak_text() -> str:
    """The peak, to follow the name of a processor."""
    peak = core_peak()
    return "" if peak is None else f", {peak / 1e9:.0f} GFLOP/s a core"
