"""benchmarks/draw.py: pictures of stored rows, whose labels do not lie on one another."""

import importlib.util
import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from helpers.benchfiles import BENCHMARKS, Import

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
RESULTS = BENCHMARKS / "results"


def drawn(plot: Any, monkeypatch: pytest.MonkeyPatch, *results: str) -> Any:
    """The figure of the rows of these files."""
    from matplotlib.figure import Figure

    figures = list[Figure]()
    monkeypatch.setattr(Figure, "savefig", lambda self, path, dpi: figures.append(self))
    rows = [row for name in results for row in json.loads((RESULTS / name).read_text())]
    plot.draw(rows, "x.png")
    (figure,) = figures
    figure.draw_without_rendering()
    return figure


def test_labels_of_scaling_do_not_overlap(module: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = drawn(module("lib.scaling.plot"), monkeypatch, "scaling-2-ranks-zen3.json")
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        assert len(boxes) > 20
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_a_step_is_compared_with_the_fastest_form_of_pytorch(
    module: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = "training-zen4-native.json", "language-zen4.json"
    (axes,) = drawn(module("lib.steps_plot"), monkeypatch, *files).axes
    labels = [text.get_text() for text in axes.get_yticklabels()]
    shown = dict(zip(labels, (bar.get_width() for bar in axes.patches), strict=True))
    assert len(shown) == 11
    assert shown["CNN, 28x28"] == 0.522  # of T+
    assert shown["autoencoder"] == 0.943  # of T*
    assert shown["residual CNN"] == 0.737  # compiled


def test_rows_of_two_plots_are_refused(tmp_path: Path) -> None:
    files = [str(RESULTS / f"{name}.json") for name in ("scaling-2-ranks-zen3", "language-zen4")]
    ended = subprocess.run(
        [sys.executable, str(BENCHMARKS / "draw.py"), *files, str(tmp_path / "x.png")],
        check=False, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "give rows of one of training, language, scaling, collectives" in ended.stderr
