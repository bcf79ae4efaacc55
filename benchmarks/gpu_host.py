"""The host's time of training steps on a GPU, measured without one: python benchmarks/gpu_host.py

The steps (lib/gpu_steps.py) run on the null device of the emulator, which computes nothing (see
tests/emulator/README.md): what is left is the time of Python, CuPy and the launches. A figure is
the least processor time of a step, in rounds that alternate between the step as written and
compiled; a Trainer's step runs by autograd and as a graph.
"""

import argparse
import sys
import time
from pathlib import Path

from lib import timing
from lib.gpu_steps import FORMS, MOST, STEPS, WARM_UP, step_of
from lib.tables import MS, Column, table
from lib.timing import Row, Step


def set_up() -> None:
    """Gives CuPy the null device, before anything imports it."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from helpers.kernels.step_meter import set_up

    set_up()


def row_of(case: str, rounds: int) -> Row:
    """The least times of a case."""
    steps = {form: step_of(case, form) for form in FORMS}
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    times = [{form: seconds(step) for form, step in steps.items()} for _ in range(rounds)]
    least = {form: min(found[form] for found in times) for form in FORMS}
    ratio = least["compiled"] / least["written"]
    return {"benchmark": "gpu_host", "case": case, **least, "ratio": ratio}


def seconds(step: Step) -> float:
    """Processor time of one step."""
    begin = time.process_time()
    step()
    return time.process_time() - begin


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", help="write one row per case to this file")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    if options.rounds > MOST - WARM_UP:
        parser.error(f"--rounds {options.rounds} leaves an epoch: at most {MOST - WARM_UP}")
    set_up()
    rows = [row_of(case, options.rounds) for case in options.cases or STEPS]
    columns = [*(MS(f"{form}, ms", form) for form in FORMS), Column("ratio", "ratio")]
    print(table("case", columns, rows, lambda row: str(row["case"])))
    timing.finish(options.json, rows)


if __name__ == "__main__":
    main()
