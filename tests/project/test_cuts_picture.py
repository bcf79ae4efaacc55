"""What docs say and draw of what each cut of a transformer sends and holds is what the program says
today."""

import importlib.util
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "cuts.png"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return runpy.run_path(str(ROOT / "scripts" / "draw_cuts.py"))


def drawn() -> list[Any]:
    from PIL import Image

    with Image.open(PICTURE) as picture:
        found: list[Any] = json.loads(picture.info["Description"])
    return found


def test_the_figures_are_those_of_the_program(script: dict[str, Any], is_sample: bool) -> None:
    cuts = [(cut.format(n), n) for cut in script["CUTS"] for n in script["RANKS"]]
    found = dict(zip([("", 1), *cuts], drawn(), strict=True))
    sample = cuts[7::4] if is_sample else list(found)  # ZeRO 3, sequence parallel, pp; 4 ranks
    for options, ranks in sample:
        now = json.loads(json.dumps(script["row_of"](options, ranks)))
        assert now == found[options, ranks], "draw it again: python scripts/draw_cuts.py"


def test_parts_of_bars_are_as_long_as_the_figures(
    script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    rows = [script["Row"](*row) for row in drawn()]
    save, panels = Figure.savefig, []

    def noted(figure: Any, *arguments: Any, **options: Any) -> None:
        panels.extend(figure.get_axes())
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", noted)
    script["draw"](rows, str(tmp_path / "again.png"))
    for axes, what in zip(panels, ("sent", "held"), strict=True):
        for bars, name in zip(axes.containers, script["PARTS"], strict=True):
            wanted = [getattr(row, what).get(name, 0) / 1e6 for row in rows]
            assert [bar.get_width() for bar in bars] == pytest.approx(wanted)
        texts = [text.get_text() for text in axes.texts]
        assert len(texts) == len(rows)
        for text, row in zip(texts, rows, strict=True):
            assert text.startswith(f"{sum(getattr(row, what).values()) / 1e6:.1f} MB") or not row[2]


def test_the_table_of_sequence_parallelism(script: dict[str, Any]) -> None:
    text = (ROOT / "docs" / "sequences.md").read_text()
    said = dict(re.findall(r"^\| ([1236]) \| (.* MB \|.*) \|$", text, re.M))
    assert len(said) == 4
    for ranks, cells in said.items():
        options = (f"--tp {ranks}", f"--tp {ranks} --sequence-parallel")[: 1 if ranks == "1" else 2]
        found = [script["row_of"](one, int(ranks)) for one in options]
        kept = [f"{row.held['activations'] / 1e6:.1f} MB" for row in found]
        sent = [f"{sum(row.sent.values()) / 1e6:.1f} MB" for row in found]
        wanted = [*kept, *sent] if ranks != "1" else [*kept, "", "0", ""]
        assert [cell.strip() for cell in cells.split("|")] == wanted


def test_an_unusable_file_is_refused_before_anything_is_counted(
    script: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert script["main"](["--out", "cuts.txt"]) == 2
    assert capsys.readouterr().err.startswith("draw_cuts.py: ")
