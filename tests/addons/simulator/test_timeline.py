"""Drawings of timelines: text and SVG."""

import re
from xml.etree import ElementTree

import pytest

from nnmpi.addons.simulator.drawing.svg import svg
from nnmpi.addons.simulator.drawing.timeline import Span, Timeline, draw
from nnmpi.addons.simulator.pipeline import Costs, simulate
from nnmpi.schedules.lists.of_schedule import lists
from nnmpi.schedules.pipeline import SCHEDULES

NAMESPACE = "{http://www.w3.org/2000/svg}"


def of(name: str, p: int = 4, m: int = 8, v: int = 1, title: str = "") -> Timeline:
    v = SCHEDULES[name].stages_a_rank(v)
    result = simulate(lists(SCHEDULES[name], p, m, v), Costs.uniform(p, v))
    return result.timeline._replace(title=title)


TRACE = Timeline(
    (
        Span(0, "F", 0, 0, 0.0, 1.5),
        Span(0, "wait", -1, 0, 1.5, 2.5),
        Span(1, "receive", 0, 1, 0.0, 1.0),
        Span(1, "all-gather", -1, 1, 1.0, 3.0),
    ),
    ranks=2,
    title="a < b",
    unit="ms",
)


# ---- text


def test_the_text_of_a_small_pipeline() -> None:
    assert draw([of("1f1b", 2, 3)]).splitlines() == [
        "rank 0  F0- F1- ........B0----- F2- B1----- ....B2-----",
        "rank 1  ....F0- B0----- F1- B1----- F2- B2----- ........",
        "",
        "F forward   B backward   . idle",
    ]


def test_a_drawing_is_as_wide_as_asked() -> None:
    for name in SCHEDULES:
        for m in (1, 8, 32, 200):
            lines = draw([of(name, 4, m)]).splitlines()[:4]
            assert max(map(len, lines)) <= 120
            assert min(map(len, lines)) >= max(map(len, lines)) - 1


def test_kinds_of_a_trace_as_text() -> None:
    lines = draw([TRACE]).splitlines()
    assert lines[1:3] == ["rank 0  F0- ~- .", "rank 1  r0 a---"]
    assert lines[-1] == "F forward   r receive   ~ wait   a all-gather   . idle"


def test_a_short_wait_does_not_make_a_drawing_illegible() -> None:
    spans = of("1f1b", 2, 3).spans
    noisy = Timeline((*spans, Span(0, "wait", -1, 0, 2.0, 2.0001)), ranks=2)
    assert draw([noisy]).splitlines()[:2] == draw([of("1f1b", 2, 3)]).splitlines()[:2]


# ---- SVG


def boxes(root: ElementTree.Element) -> list[tuple[float, float, float, float, str]]:
    return [
        (*(float(r.get(k, "")) for k in ("x", "y", "width", "height")), r.get("fill", ""))
        for r in root.iter(f"{NAMESPACE}rect")
    ]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_span_is_a_box_within_its_row(name: str) -> None:
    timeline = of(name, m=4)  # few enough for one band
    root = ElementTree.fromstring(svg([timeline]))
    groups = root.findall(f"{NAMESPACE}g")
    spans = [s for s in timeline.spans if s.end > s.start]
    assert len(groups) == len(spans)
    idle = [b for b in boxes(root) if b[3] == 30 and b[4] == "#eef0f3"]
    assert len(idle) == timeline.ranks
    scale = idle[0][2] / timeline.end
    for group, span in zip(groups, spans, strict=True):
        box, text = group.find(f"{NAMESPACE}rect"), group.find(f"{NAMESPACE}text")
        assert text.text == str(span.micro)
        x, width = float(box.get("x", "")), float(box.get("width", ""))
        row = idle[span.rank]
        assert x == pytest.approx(row[0] + span.start * scale, abs=0.02)
        assert width == pytest.approx((span.end - span.start) * scale, abs=0.02)
        assert float(box.get("y", "")) == row[1]
        assert x + width <= row[0] + row[2] + 0.02
        size = float(text.get("font-size", ""))
        assert 7 <= size <= 14
        assert size * 0.6 * len(str(span.micro)) < width


@pytest.mark.parametrize("m", [24, 64])
def test_every_pass_of_many_micro_batches_has_its_number(m: int) -> None:
    """Those that lie on two bands of time have it twice."""
    timeline = of("zb-h1", m=m)
    groups = ElementTree.fromstring(svg([timeline])).findall(f"{NAMESPACE}g")
    passes = {(s.kind, s.rank, s.micro) for s in timeline.spans if s.end > s.start}
    assert len(groups) >= len(passes) == 4 * 3 * m
    for group in groups:
        box, label = group.find(f"{NAMESPACE}rect"), group.find(f"{NAMESPACE}text")
        assert f" {label.text}, " in (group[0].text or "")
        size, width = float(label.get("font-size", "")), float(box.get("width", ""))
        long = 0.6 * size * len(label.text or "")
        assert (0.72 * size if label.get("transform") else long) < width
        assert long < 30  # the height of the row


def test_everything_lies_within_the_picture() -> None:
    titled = [of(name, title=name) for name in SCHEDULES]
    root = ElementTree.fromstring(svg(titled, "all"))
    _, _, width, height = map(float, root.get("viewBox", "").split())
    for x, y, w, h, _ in boxes(root):
        assert x >= 0
        assert y >= 0
        assert x + w <= width
        assert y + h <= height
    texts = [t.text for t in root.iter(f"{NAMESPACE}text")]
    assert [*dict.fromkeys(t for t in texts if t in SCHEDULES)] == list(SCHEDULES)
    assert texts.count("rank 3") > len(SCHEDULES)  # naive goes on on other bands


def test_a_slow_timeline_is_cut_off() -> None:
    slow, fast = of("naive", title="naive"), of("gpipe", title="gpipe")
    text = svg([slow, fast], until=fast.end)
    root = ElementTree.fromstring(text)
    assert "goes on until 96" in text
    rows = [b for b in boxes(root) if b[3] == 30 and b[4] == "#eef0f3"]
    assert len({b[2] for b in rows}) == 1
    right = rows[0][0] + rows[0][2]
    assert all(x + w <= right + 2 for x, _, w, h, _ in boxes(root) if h == 30)


def test_the_axis_has_round_numbers_and_the_unit() -> None:
    text = svg([TRACE])
    ticks = re.findall(r'text-anchor="middle" font-weight="normal">([\d.]+)</text>', text)
    assert [t for t in ticks if t not in ("0",)][-1] == "3"
    assert "time [ms]" in text
    assert "a &lt; b" in text


def test_the_legend_names_the_shade_of_later_stages() -> None:
    shade = "second shade: a later stage of the rank"
    assert shade in svg([of("interleaved", 2, 4, 2)])
    assert shade not in svg([of("1f1b", 2, 4)])
