"""The notebooks in examples/notebooks run and draw, and the site and those kept with their output
show it."""

import runpy
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import mpijob

from nnmpi import comm
from nnmpi.addons.simulator.collective import OPERATIONS
from nnmpi.addons.simulator.drawing import rounds
from nnmpi.collectives import ALGORITHMS

FOLDER = mpijob.ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
SHOWN = ("rank", "size", "irecv", "ledger")
"""What the code of a lesson reads of a Comm."""

if not find_spec("nbclient") or not find_spec("ipykernel"):
    pytest.skip("nbclient and ipykernel are not installed", allow_module_level=True)

import nbformat  # noqa: E402

LESSONS = runpy.run_path(str(mpijob.ROOT / "scripts" / "lessons.py"))


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def shown(notebook: Any) -> list[Any]:
    """What the cells of a notebook print and draw."""
    return [one for cell in notebook.cells for one in cell.get("outputs", ())]


def pictures(notebook: Any) -> list[str]:
    every = [one.get("data", {}).get("image/svg+xml") for one in shown(notebook)]
    return [picture for picture in every if picture]


def test_lesson_1_shows_a_ring_and_a_tree_before_it_runs_and_others_have_no_output() -> None:
    assert tuple(name for name in NOTEBOOKS if shown(read(name))) == LESSONS["KEPT"]
    cells, claim = read("1-all-reduce").cells, OPERATIONS["all-reduce"].collective.claim
    for name in ("ring", "tree"):
        (cell,) = [cell for cell in cells if cell.source == f'ALGORITHMS["{name}"]']
        (output,) = cell.outputs
        drawn = rounds.as_svg({f"all-reduce {name}, 4 ranks": ALGORITHMS[name]}, 4, claim)
        assert output.data["image/svg+xml"] == drawn, "python scripts/lessons.py --keep"


def test_the_ring_that_a_lesson_writes_is_the_one_that_it_draws() -> None:
    (code,) = [c.source for c in read("1-all-reduce").cells if "def by_ring" in c.source]

    def messages(c: comm.Comm) -> list[tuple[int, int]]:
        """To whom a rank sends which chunk."""
        sent = []

        def isend(chunk: np.ndarray, to: int) -> comm.Work:
            start = chunk.ctypes.data - chunk.base.ctypes.data
            sent.append((to, start // chunk.nbytes))
            return c.isend(chunk, to=to)

        names = {"np": np, "comm": SimpleNamespace(threads=lambda p, f: None), "N": 8}
        exec(code, names)
        names["by_ring"](SimpleNamespace(**{n: getattr(c, n) for n in SHOWN}, isend=isend))
        return sent

    for r, sent in enumerate(comm.threads(4, messages)):
        assert sent == [(step.to, step.send[0]) for step in ALGORITHMS["ring"].steps(r, 4)]


@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.filterwarnings("ignore")  # of the client's libraries
def test_a_notebook_runs_and_draws(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in mpijob.environment({"IPYTHONDIR": str(tmp_path)}).items():
        monkeypatch.setenv(key, value)
    notebook = read(name)
    kept = shown(notebook)
    LESSONS["run"](notebook)
    assert len(pictures(notebook)) >= 1
    assert all(picture.startswith("<svg") for picture in pictures(notebook))
    found = shown(notebook)
    assert not [one for one in found if one.output_type == "error" or one.get("name") == "stderr"]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in code if "solution" in cell.metadata.get("tags", ()))
    if kept:
        assert found == kept, "store what it shows now: python scripts/lessons.py --keep"
    page, files = LESSONS["page"](notebook, name)
    assert [*files.values()] == pictures(notebook)
    assert all(f"]({file})" in page for file in files)
