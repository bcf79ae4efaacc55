"""The notebooks in examples/notebooks: kept without output; they run, draw, and have solutions."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from helpers import mpijob

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
RUNS_BY_DEFAULT = ("2-data-parallelism", "4-sharded-layers-and-zero")

if not find_spec("nbclient") or not find_spec("ipykernel"):
    pytest.skip("nbclient and ipykernel are not installed", allow_module_level=True)

import nbclient  # noqa: E402
import nbformat  # noqa: E402


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_without_output(name: str) -> None:
    nbformat.validate(read(name))
    for cell in read(name).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_each_exercise_has_a_solution_that_is_collapsed(name: str) -> None:
    cells = read(name).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    exercises = re.findall(r"^(\d)\. ", prose.split("## Exercises")[1], re.M)
    solutions = [cell for cell in cells if "solution" in cell.metadata.get("tags", ())]
    assert exercises == re.findall(r"^### Solution (\d)$", prose, re.M) == ["1", "2", "3"]
    assert len(solutions) == 3
    assert all(cell.metadata.jupyter.source_hidden for cell in solutions)


def test_the_index_names_each_notebook() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\((\S+)\.ipynb\)", text) == NOTEBOOKS
    assert len(NOTEBOOKS) == 6


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
