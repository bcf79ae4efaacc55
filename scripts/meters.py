"""Prints how much code a reader of nnmpi has to know: python scripts/meters.py

loaded     the modules of nnmpi that `import nnmpi` loads, but for empty files __init__.py
trainer    the modules that nnmpi.Trainer loads, those included
plain      the code lines of the functions that two data-parallel ranks execute to train a CNN, and
           the number of their files; imports, and what modules call there, are not counted
several    the same with ZeRO 2 and 3, a pipeline, tensor parallelism, a checkpoint and --verify too
steps      the same of what the first rank executes in one step, the fourth (`step_path.py`)

Docstrings, comments and blank lines are no code lines. Ranks are threads. As JSON with --json.
"""

import argparse
import ast
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PLAIN: dict[str, Any] = {}
SEVERAL: tuple[dict[str, Any], ...] = (
    {"zero": 2, "allreduce": "ring"},
    {"zero": 3, "allreduce": "ring"},
    {"pp": 2, "micro_batches": 2, "model": "mlp:64-32-10"},
    {"tp": 2},
    {"save_every": "1"},
    {"verify": True},
)
"""The options of the runs, besides a CNN, digits and three steps."""

GIVEN: dict[str, Any] = {"model": "digits-cnn", "data": "digits", "batch_size": 32, "quiet": True}

STEPS: dict[str, tuple[int, dict[str, Any]]] = {
    "replay": (2, {"allreduce": "ring"}),
    "tape": (2, {"allreduce": "ring", "compile": False}),
    "zero 3 in pipelines": (
        4,
        {"zero": 3, "dp": 2, "pp": 2, "micro_batches": 2, "model": "mlp:64-32-10"},
    ),
}
"""The number of ranks and the options of the single steps, besides a CNN and digits."""


class Calls:
    """The code of nnmpi's functions that were called, on any thread."""

    def __init__(self) -> None:
        self.code = set[CodeType]()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code not in self.code and not _is_of_import(frame):
            self.code.add(frame.f_code)

    def run(self, options: dict[str, Any]) -> None:
        """Trains two ranks, and notes what they call."""
        import nnmpi
        from nnmpi.comm import thread_ranks

        def train(comm: Any) -> None:
            config = nnmpi.Config(**{**GIVEN, "steps": 3, **options})
            with nnmpi.Trainer(config, comm=comm) as trainer:
                trainer.fit()

        threading.setprofile(self)
        try:
            thread_ranks.run(2, train)
        finally:
            threading.setprofile(None)

    def of_step(self, ranks: int, options: dict[str, Any]) -> None:
        """Makes steps on so many ranks, and notes what the first one calls in the fourth."""
        from step_path import profile_step

        import nnmpi
        from nnmpi.comm import thread_ranks

        config = nnmpi.Config(**{**GIVEN, **options})

        def run(comm: Any) -> None:
            profile_step(comm, config, self if comm.rank == 0 else lambda *event: None)

        thread_ranks.run(ranks, run)

    def measured(self) -> tuple[int, int]:
        """Returns the code lines of the functions, and the number of their files."""
        lines = {
            (code.co_filename, line)
            for code in self.code
            if code.co_filename.startswith(str(ROOT / "nnmpi"))
            for line in _functions(code.co_filename).get(code.co_firstlineno, ())
        }
        return len(lines), len({name for name, _ in lines})


IMPORTLIB = "<frozen importlib._bootstrap>"


def _is_of_import(frame: FrameType | None) -> bool:
    """Returns True for the call of a module that is being imported, such as of a decorator."""
    while frame is not None and frame.f_code.co_filename != IMPORTLIB:
        frame = frame.f_back
    return frame is not None


_KNOWN: dict[str, dict[int, list[int]]] = {}


def _functions(name: str) -> dict[int, list[int]]:
    """Returns the code lines of each function of a file, by the line on which it begins."""
    if name not in _KNOWN:
        text = Path(name).read_text(encoding="utf-8")
        _KNOWN[name] = dict(_code_lines(ast.parse(text), text.splitlines()))
    return _KNOWN[name]


def _code_lines(tree: ast.Module, lines: list[str]) -> Iterator[tuple[int, list[int]]]:
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    for f in functions:
        inner = {k for g in functions if g is not f and g in ast.walk(f) for k in _span(g)}
        first = f.body[0]
        is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        inner |= {*_span(first)} if is_text else set()
        code = (k for k in _span(f) if k not in inner)
        begin = min([f.lineno, *(d.lineno for d in f.decorator_list)])
        yield begin, [k for k in code if lines[k - 1].strip() and lines[k - 1].strip()[0] != "#"]


def _span(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _loaded() -> int:
    of_nnmpi = (m for name, m in sys.modules.items() if name.split(".")[0] == "nnmpi")
    return sum(Path(str(module.__file__)).stat().st_size > 0 for module in of_nnmpi)


def main() -> None:
    """Measures, and prints the meters."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--json", action="store_true")
    is_json = p.parse_args().json
    sys.path.insert(0, str(ROOT))
    import nnmpi

    found: dict[str, Any] = {"loaded": _loaded()}
    nnmpi.Config, nnmpi.Trainer  # noqa: B018 - loads them
    found["trainer"] = _loaded()
    calls = Calls()
    calls.run(PLAIN)
    found["plain"] = calls.measured()
    with tempfile.TemporaryDirectory() as folder:
        for options in SEVERAL:
            calls.run(
                {**options, **({"checkpoint_dir": folder} if "save_every" in options else {})}
            )
    found["several"] = calls.measured()
    found["steps"] = {}
    for name, step in STEPS.items():
        calls = Calls()
        calls.of_step(*step)
        found["steps"][name] = calls.measured()
    if is_json:
        print(json.dumps(found))
        return
    print(f"import nnmpi loads {found['loaded']} modules of nnmpi, Trainer {found['trainer']}")
    runs = {name: found[name] for name in ("plain", "several")}
    steps = {f"a step, {name}": found["steps"][name] for name in STEPS}
    for name, (lines, files) in {**runs, **steps}.items():
        print(f"{name}: {lines:,} code lines of functions that run, in {files} files")


if __name__ == "__main__":
    main()
