"""What a GPU decides and how fast it is, in the minutes for which one is at hand; see
scripts/gpu_minutes.

    OUT/rows.jsonl   a line for each figure, written at once; a second run goes on where this ended
    OUT/report.md    its tables, made of these lines
    OUT/kernels      kernels that --warm has compiled for an H200, which a GPU then loads

Each section (lib/gpu/sections.py) has a process of its own. A case that crashes, fails or takes too
long is a row with the error, and the section goes on with the next one. A section that has used its
share of the time ends, and what it has not measured is named.

--emulated runs all without a GPU: nothing is computed but by tests, and times mean nothing.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from lib import jobs
from lib.gpu import report
from lib.gpu.device import Device
from lib.gpu.rows import Row, Rows
from lib.gpu.sections import KERNELS, SECTIONS

PROGRAM = "lib.gpu.sections"
"""The module whose `main` measures a section."""

REHEARSAL = "rehearsal"
"""The folder in OUT for the rows of --warm."""

NAMES_ERROR = re.compile(r"Error\b|^Timeout \(|^Fatal Python")


class Minutes:
    """A run: the rows, how sections are run (gpu, emulated or warm), and when the time is up."""

    def __init__(self, folder: Path, kernels: Path, kind: str, seconds: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.kernels, self.kind = folder, kernels, kind
        self.rows, self.end = Rows(folder), time.monotonic() + seconds
        self.on = Device(kind != "gpu")

    def plan(self, names: list[str]) -> None:
        """Notes what there is to measure, so that a report can name what is not."""
        known = self.rows.cases("plan")
        for name in names:
            cases = [*SECTIONS[name].cases(self.on)]
            if name not in known:
                row = Row("plan", name, len(cases), "cases", {"cases": cases}, self.on.emulated)
                self.rows.add(row)

    def run(self, names: list[str]) -> None:
        """Runs sections; time that one leaves is shared by those behind it."""
        for k, name in enumerate(names):
            shares = [SECTIONS[other].share for other in names[k:]]
            limit = (self.end - time.monotonic()) * shares[0] / sum(shares)
            begin = time.monotonic()
            self._section(name, begin + limit)
            left = len(self._left(name))
            print(f"{name}: {time.monotonic() - begin:.0f} s, {left} cases left", flush=True)

    def _left(self, name: str) -> set[str]:
        return {*SECTIONS[name].cases(self.on)} - self.rows.cases(name)

    def _section(self, name: str, end: float) -> None:
        """Starts processes of a section until all its cases have rows, or its time is up."""
        while self._left(name) and (seconds := end - time.monotonic()) > 1:
            self.rows.begin("")
            status = self._process(name, seconds)
            if status is None:
                return
            case = self.rows.running()
            if status and not case:  # it did not come to a case
                case = min(self._left(name), key=[*SECTIONS[name].cases(self.on)].index)
            if case:
                why = {"why": f"ended with {status}: {self._last_words(name)}"}
                self.rows.add(Row(name, case, None, "error", why, self.on.emulated))

    def _process(self, name: str, seconds: float) -> int | None:
        """The exit status of a process of a section; None if its time was up."""
        arguments = [str(self.folder), name, self.kind, str(self.kernels)]
        with (
            self._log(name).open("wb") as log,
            subprocess.Popen(
                [*jobs.program(PROGRAM), *arguments],
                env={**os.environ, **self._caches()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ) as process,
        ):
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # its ranks and compilers too

    def _caches(self) -> Mapping[str, str]:
        """What PyTorch compiles is kept for a second run."""
        names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        return {name: str(self.folder.absolute() / name.lower()) for name in names}

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _last_words(self, name: str) -> str:
        """The line of a log that names an error, or the last one."""
        text = self._log(name).read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        named = [line for line in lines if NAMES_ERROR.search(line)]
        return (named or lines or ["without any output"])[-1][:500]


def main() -> int:
    """Runs the sections and writes the report. Exit status: 1 if a case failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of rows, report and kernels")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--emulated", action="store_true", help="without a GPU")
    parser.add_argument(
        "--warm", action="store_true", help="as --emulated, and compile kernels for a GPU to come"
    )
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="NAME", help="sections")
    a = parser.parse_args()
    kind = "warm" if a.warm else "emulated" if a.emulated else "gpu"
    if kind == "gpu" and (reason := no_gpu()):
        print(f"gpu_minutes: {reason}; or --emulated", file=sys.stderr)
        return 2
    folder = a.out / REHEARSAL if a.warm else a.out
    minutes = Minutes(folder, a.out / KERNELS, kind, a.seconds)
    rows = minutes.rows.read()
    if rows and rows[0].emulated is not minutes.on.emulated:
        parser.error(f"{folder} has rows of {'an emulated' if rows[0].emulated else 'a real'} GPU")
    names = [name for name in SECTIONS if name in (a.only or SECTIONS)]
    if a.warm and not a.only:
        names.remove("tests")  # whose kernels would be too many to carry
    minutes.plan(names)
    minutes.run(names)
    rows = minutes.rows.read()
    path = folder / "report.md"
    path.write_text(report.text(rows), encoding="utf-8")
    broken = [row for row in rows if row.unit in report.BROKEN]
    print(f"{len(rows)} rows, {len(broken)} failed; wrote {path}")
    return 1 if broken else 0


def no_gpu() -> str:
    """The reason why no GPU can be used; empty if one can."""
    check = "from nnmpi.arrays import backend; backend.get('cuda')"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=False
    )
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


if __name__ == "__main__":
    raise SystemExit(main())
