"""Tables (CSV and others) as data: what `--data x.csv` says, and the recipe of docs/running.md."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.mpijob import ROOT

from nnmpi import data, train

PAGE = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
RECIPE = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)[-1]


@pytest.mark.parametrize(
    "name", ["x.csv", "/tmp/T.CSV", "a.csv.gz", "b.tsv", "c.parquet", "d.xlsx"]
)
def test_a_table_is_to_become_an_npz_file(name: str) -> None:
    with pytest.raises(ValueError, match=r"is a table, and has to be an \.npz file: .*savez\("):
        data.load(name)


def test_the_command_says_so_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--data", "x.csv"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("nnmpi.train: data set 'x.csv' is a table")


def test_other_names_are_not_known() -> None:
    with pytest.raises(ValueError, match="data set 'csv' is not known; choose one of iris"):
        data.load("csv")


@pytest.mark.parametrize("library", ["numpy", "pandas", "polars"])
def test_the_recipe_makes_a_file_that_trains(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of pandas and polars only what they are asked for: a table whose columns have types."""
    monkeypatch.chdir(tmp_path)
    cells = np.array([[3.5, 1.2, "fern"], [1.5, 2.2, "moss"]] * 20, object)
    read = SimpleNamespace(read_csv=lambda file: SimpleNamespace(to_numpy=lambda: cells))
    assert f"# table = {library}" in RECIPE or library == "numpy"
    exec(RECIPE.replace(f"# table = {library}", f"table = {library}"), {library: read})
    plants = data.load("plants.npz")
    assert (plants.classes, len(plants.train.y) + len(plants.test.y)) == (2, 40)
    command = "--model mlp:2-16-2 --data plants.npz --quiet"
    assert train.main([*command.split(), "--steps", "20"]) == 0
    assert command.removesuffix(" --quiet") in PAGE
