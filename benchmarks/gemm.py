"""The matrix products of W2 in NumPy, nnmpi and PyTorch: python benchmarks/gemm.py [--json FILE]

Their sum is a lower bound for the time of a step of W2. `compiled` are the loops of nnmpi,
which linear layers take where kernels.linear says so. Beside each time are its rate and, if there
is a C compiler, the rate as a share of the core's peak, which is measured first.
OPENBLAS_CORETYPE=Haswell or SkylakeX selects other kernels for NumPy.
"""

import argparse
import importlib.util
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded

import numpy as np
from lib import timing
from lib.peak import peak_text, rates
from lib.timing import Row, Sample, Step

import nnmpi
from nnmpi.arrays import blas, native
from nnmpi.arrays.kernels.linear import linear_gradients, linear_outputs

N, LAYERS = 128, ((784, 1024), (1024, 1024), (1024, 10))


def products() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The products of a step: forward, weight gradients, and all input gradients but the first."""
    rng = np.random.default_rng(0)
    made = {}
    for i, (k, o) in enumerate(LAYERS):
        x, w, g = (rng.standard_normal(s, dtype=np.float32) for s in ((N, k), (o, k), (N, o)))
        made |= {f"y{i} = x w.T": (x, w.T), f"dw{i} = g.T x": (g.T, x)}
        if i:
            made[f"dx{i} = g w"] = (g, w)
    return made


def compiled(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Step:
    """c = a @ b as the kernels of linear layers compute it."""
    if not b.flags.c_contiguous:
        return lambda: linear_outputs(a, b.T, None, c, False, True)
    if not a.flags.c_contiguous:
        w = np.empty_like(c)  # not read, but it must not be the array that is written
        return lambda: linear_gradients(a.T, w, b, None, c, None, True)
    return lambda: linear_gradients(a, b, None, c, None, None, True)


def steps(a: np.ndarray, b: np.ndarray, has_torch: bool) -> dict[str, Step]:
    """The product a @ b in each library."""
    c = np.empty((len(a), b.shape[1]), a.dtype)
    made: dict[str, Step] = {"NumPy": lambda: np.dot(a, b, out=c)}
    if native.kernel("linear_outputs") is not None:
        made["compiled"] = compiled(a, b, c)
    if has_torch:
        import torch

        torch.set_num_threads(1)
        ta, tb, tc = (torch.from_numpy(x) for x in (a, b, np.empty_like(c)))
        made["PyTorch"] = lambda: torch.mm(ta, tb, out=tc)
    return made


def main() -> None:
    """Measure every product; print rates and sums."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--rounds", type=int, default=21)
    p.add_argument("--json", help="write one row per measurement")
    a = p.parse_args()
    blas.tune()
    has_torch = importlib.util.find_spec("torch") is not None
    about = timing.machine()
    timing.warn_if_busy(about)
    print(f"nnmpi {nnmpi.__version__}, kernels {blas.core()}, {about['cpu']}{peak_text()}")
    rows: list[Row] = []
    totals: dict[str, float] = {}
    for name, (x, y) in products().items():
        made = steps(x, y, has_torch)
        calls = {s: timing.calls_for(f, 0.01) for s, f in made.items()}
        taken: dict[str, list[Sample]] = {s: [] for s in made}
        for _ in range(a.rounds):
            for subject, f in made.items():
                taken[subject].append(timing.measure(f, calls[subject]))
        line, operations = f"{name:<14}", 2.0 * x.shape[0] * x.shape[1] * y.shape[1]
        for subject, samples in taken.items():
            cpu, wall = timing.median(samples)
            totals[subject] = totals.get(subject, 0.0) + cpu
            row = {"benchmark": "gemm", "case": name, "subject": subject, "ranks": 1}
            row |= {"seconds": wall, "cpu_seconds": cpu, **rates(operations, cpu), **about}
            line += f"{subject:>10} {cpu * 1e3:6.3f} ms {row['gflops']:4.0f} GF/s"
            line += f" {row['of_peak']:4.0%}" if "of_peak" in row else ""
            rows.append(row)
        print(line)
    print("sum" + "".join(f"{subject:>12} {t * 1e3:.2f} ms" for subject, t in totals.items()))
    timing.finish(a.json, rows)


if __name__ == "__main__":
    main()
