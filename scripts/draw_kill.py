"""Draws what ranks do while one of them is killed: python scripts/draw_kill.py -o docs/killed.svg

It trains on four ranks of this machine under `mpirun --with-ft ulfm`; the last one kills itself
after a step. Every rank writes to a file of its own what it has completed, and when, so that the
picture shows the killed rank too, which a trace of the run does not have.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import nnmpi  # noqa: E402
from nnmpi.addons.recovery.run.survivors import Survivors  # noqa: E402
from nnmpi.addons.simulator.drawing.svg import svg  # noqa: E402
from nnmpi.addons.simulator.drawing.timeline import STYLES, Span, Style, Timeline  # noqa: E402
from nnmpi.options import cli  # noqa: E402

RANKS, VICTIM = 4, 3
FIRST, KILLED, LAST = 14, 18, 23  # steps: the first one that is drawn, the victim's last, the last
MODEL = "mlp:64-1024-1024-10"
STYLES |= {
    "step": Style("step", "S", "#6ea0f0"),
    "interrupted": Style("interrupted step", "I", "#f0cfc9"),
    "shrink": Style("shrink to a smaller Comm", "C", "#b59ae0"),
    "agree": Style("agree on a version", "V", "#f3b54f"),
    "arrange": Style("arrange the new layout", "L", "#58b57a"),
    "killed": Style("killed", "K", "#c2261d"),
}

Entry: TypeAlias = tuple[str, int, float, float]  # kind, step or -1, start and end in seconds


# ---- on each rank


class Log:
    """What this rank completes, written at once: a killed rank writes nothing later."""

    def __init__(self, path: Path) -> None:
        self._file, self._since, self._rank = path.open("w"), time.time(), int(path.stem)

    def add(self, kind: str, step: int = -1) -> None:
        """Adds what has ended now, and began when the last entry ended."""
        now = time.time()
        print(json.dumps((kind, step, self._since, now)), file=self._file, flush=True)
        self._since = now

    def on_step(self, trainer: nnmpi.Trainer, event: Any) -> None:
        """Logs a step, and kills the victim."""
        step = trainer.run.state.step
        self.add("step", step)
        if step == KILLED and self._rank == VICTIM:
            self.add("killed")
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch(self, trainer: nnmpi.Trainer, event: Any) -> None:
        """The evaluation is no part of a step."""
        self._since = time.time()


def train(folder: Path) -> None:
    """The program of a rank."""
    log = Log(folder / os.environ["OMPI_COMM_WORLD_RANK"])

    def logged(before: str, kind: str, method: Callable[..., None]) -> Callable[..., None]:
        def run(self: Survivors, *arguments: Any) -> None:
            log.add(before)
            method(self, *arguments)
            log.add(kind)

        return run

    config = nnmpi.Config(model=MODEL, data="digits", batch_size=128, epochs=2, quiet=True)
    trainer = nnmpi.Trainer(config, callbacks=[log])
    # from here on, since ranks are arranged at the start too
    Survivors.shrink = logged("interrupted", "shrink", Survivors.shrink)  # type: ignore[method-assign]
    Survivors.arrange = logged("agree", "arrange", Survivors.arrange)  # type: ignore[method-assign]
    trainer.fit()


# ---- the picture


def run() -> list[list[Entry]]:
    """The entries of each rank of a run."""
    command = ["mpirun", "--with-ft", "ulfm", "--oversubscribe", "-n", f"{RANKS}"]
    with tempfile.TemporaryDirectory() as name:
        command += [sys.executable, str(Path(__file__).resolve()), "--train", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        logs = [Path(name, f"{rank}") for rank in range(RANKS)]
        if not all(log.exists() for log in logs):
            raise ValueError(f"the run failed: {done.stderr[-1000:]}")
        return [[(*json.loads(line),) for line in log.read_text().splitlines()] for log in logs]


def timeline(ranks: Sequence[Sequence[Entry]]) -> Timeline:
    """The entries from FIRST to LAST, in milliseconds."""
    start = min(entry[2] for entries in ranks for entry in entries if entry[1] == FIRST)
    end = max(entry[3] for entries in ranks for entry in entries if entry[1] == LAST)

    def spans() -> Iterator[Span]:
        for rank, entries in enumerate(ranks):
            for kind, step, began, ended in entries:
                if began >= start - 1e-9 and ended <= end + 1e-9:
                    began = ended if kind == "killed" else began
                    yield Span(rank, kind, step, -1, 1e3 * (began - start), 1e3 * (ended - start))

    title = f"{MODEL} on {len(ranks)} ranks; rank {VICTIM} is killed after step {KILLED}"
    return Timeline(tuple(spans()), len(ranks), title, "ms")


def main(arguments: Sequence[str]) -> int:
    """Draws the picture, and returns the exit status: 2 for unusable arguments."""
    parser = cli.Parser(prog="draw_kill.py", description="Draw the timeline of a killed rank.")
    parser.add_argument("-o", "--out", default="killed.svg", help="the picture (killed.svg)")
    parser.add_argument("--train", type=Path, metavar="FOLDER", help="what each rank runs")
    try:
        given = parser.parse_args(arguments)
        if given.train:
            train(given.train)
            return 0
        Path(given.out).write_text(svg([timeline(run())]), encoding="utf-8")
    except (OSError, ValueError) as error:
        return cli.fail("draw_kill.py", error, 2)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
