"""What a training step asks of a GPU, counted on the null device (emulator/README.md).

    PYTHONPATH=$PWD:tests python -m helpers.kernels.step_meter [--write] [CASE ...]

calls         of CUDA, by the host: launches of kernels, libraries and graphs, copies, waits
nodes         calls in graphs
megabytes     10^6 bytes that kernels read and write (emulator/work.py)
gflop         10^9 multiplications and additions of products, convolutions and attention
microseconds  the least time of an H200: the sum over kernels of 2 us, or of what its bytes take at
              4.8 TB/s or its operations at the peak, if that is more
reason        why no graph contains the step

The figures are printed as JSON. With --write they take their places in addons/cuda/meter.toml.
"""

import argparse
import gc
import json
import os
import sys
import tomllib
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from emulator import load, machine, work
from emulator.work import Work
from helpers.benchfiles import BENCHMARKS

TABLE = Path(__file__).parents[2] / "addons" / "cuda" / "meter.toml"

LAUNCH, BANDWIDTH = 2e-6, 4.8e12
PEAKS = {"": 67e12, "float32": 67e12, "float64": 67e12, "tf32": 495e12, "16 bits": 989e12}
"""Operations a second of an H200, without sparsity, by the numbers that are multiplied."""

TWICE = {
    "adam": (0, 2, 3, 4),
    "rmsprop": (0, 2, 3, 4),
    "sgd": (0, 2),
    "bias_relu": (0,),
    "add_sorted": (0,),
    "moments": (0,),
    "track": (0, 1),
    "probabilities": (0,),
    "lstm": (0, 5),
    "lstm_gradient": (0, 1),
    "gru": (0, 4),
    "gru_gradient": (0,),
}
"""The places of arrays that kernels of nnmpi read and write; `moments` reads its own twice."""

PLACES = {(name, place) for name, places in TWICE.items() for place in places}

WARM_UP = 5
"""Steps before the one that is counted: the first ones allocate, record, capture and compare."""


class Figures(NamedTuple):
    """The figures of one form of a step."""

    calls: int
    nodes: int
    megabytes: float
    gflop: float
    microseconds: float


def seconds(w: Work) -> float:
    """The least time of one kernel."""
    return max(LAUNCH, w.nbytes / BANDWIDTH, w.operations / PEAKS[w.numbers])


def figures_of(calls: Iterable[tuple[str, str]]) -> Figures:
    """The figures of what was called in a step."""
    calls = [*calls]
    works = [*work.works(calls, PLACES)]
    nodes = sum(kind == "node" for kind, _ in calls)
    return Figures(
        len(calls) - nodes,
        nodes,
        round(sum(w.nbytes for w in works) / 1e6, 3),
        round(sum(w.operations for w in works) / 1e9, 3),
        round(sum(map(seconds, works)) * 1e6, 1),
    )


def measured(case: str, form: str) -> dict[str, Any]:
    """The figures of a step, or the reason why there is no graph of it."""
    from lib.gpu_steps import step_of

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        step = step_of(case, form)
        for _ in range(WARM_UP):
            step()
        gc.collect()  # memory that is freed in the step that is counted would be a call
        with machine.noting() as calls:
            step()
    if problems := machine.problems():
        raise RuntimeError(f"{case}, {form}: {problems}")
    found: dict[str, Any] = figures_of(calls)._asdict()
    if form == "compiled" and not found["nodes"]:
        found["reason"] = "; ".join(str(warning.message) for warning in said) or "no graph"
    return found


def set_up(devices: int = 1) -> None:
    """Gives CuPy the null device, and that a cuDNN."""
    os.environ["NNMPI_EMULATOR"] = f"null=1 devices={devices}"
    load.install()
    from helpers.kernels import nullcudnn

    nullcudnn.install()


def table() -> dict[str, Any]:
    """What is written in the table."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def write(found: Mapping[str, Any], cases: Iterable[str], cupy: str) -> None:
    """Puts rows into the table, in the order of all cases."""
    rows = {**(table() if TABLE.exists() else {}), **found}
    lines = [*(f"# {line}".rstrip() for line in (__doc__ or "").splitlines()), ""]
    lines.append(f"cupy = {json.dumps(cupy)}  # another release may call CUDA otherwise")
    for case in filter(rows.get, cases):
        lines += ["", f"[{json.dumps(case)}]"]
        for form, figures in rows[case].items():
            fields = ", ".join(f"{name} = {json.dumps(value)}" for name, value in figures.items())
            lines.append(f"{form} = {{ {fields} }}")
    TABLE.write_text("\n".join([*lines, ""]), encoding="utf-8")


def main() -> None:
    """Counts, and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    sys.path.insert(0, str(BENCHMARKS))
    set_up()
    work.note_arrays()
    import cupy
    from lib.gpu_steps import FORMS, STEPS

    cases = options.cases or STEPS
    found = {case: {form: measured(case, form) for form in FORMS} for case in cases}
    print(json.dumps(found))
    if options.write:
        write(found, STEPS, cupy.__version__)


if __name__ == "__main__":
    main()
