"""The notebooks in examples/notebooks run and draw."""

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import mpijob

from nnmpi import comm
from nnmpi.collectives import ALGORITHMS

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
SHOWN = ("rank", "size", "irecv", "ledger")
"""What the code of a lesson reads of a Comm."""
RUNS_BY_DEFAULT = ("2-data-parallelism",)

if not find_spec("nbclient") or not find_spec("ipykernel"):
    pytest.skip("nbclient and ipykernel are not installed", allow_module_level=True)

import nbclient  # noqa: E402
import nbformat  # noqa: E402


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


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


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in RUNS_BY_DEFAULT else pytest.mark.long)
        for name in NOTEBOOKS
    ],
)
@pytest.mark.filterwarnings("ignore")  # of the client's libraries
def test_a_notebook_runs_and_draws(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in mpijob.environment({"IPYTHONDIR": str(tmp_path)}).items():
        monkeypatch.setenv(key, value)
    notebook = read(name)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3", resources=where).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [one for cell in code for one in cell.outputs]
    pictures = [
        one.data["image/svg+xml"] for one in shown if "image/svg+xml" in one.get("data", {})
    ]
    assert len(pictures) >= 1
    assert all(picture.startswith("<svg") for picture in pictures)
    assert not [one for one in shown if one.output_type == "error" or one.get("name") == "stderr"]
    assert all(cell.outputs for cell in code if "solution" in cell.metadata.get("tags", ()))
