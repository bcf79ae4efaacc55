"""`simulate sync --parameters`: what replicas send that exchange less, and when they wait."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnmpi.addons.simulator.drawing.timeline import BACKGROUND
from nnmpi.addons.simulator.replicas import (
    Model,
    Sent,
    all_reduce,
    rate_needed,
    seconds_a_step,
    steps,
)
from nnmpi.collectives import ALGORITHMS
from nnmpi.collectives.price import Link, Network, price
from nnmpi.schedules.local_steps import LocalSteps

KIND = "sync"

SHARES = 0.5, 0.8, 0.9, 0.95, 0.99
FILE = Path(__file__).with_name("published_bandwidths.toml")
PUBLISHED = tomllib.loads(FILE.read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize(("n", "layers", "seconds", "schedule", "bits", "published"), PUBLISHED)
def test_published_bandwidths_are_reproduced(
    n: float, layers: int, seconds: float, schedule: Any, bits: int, published: Any
) -> None:
    """Within 20%, data parallelism, or 25%: the published grid has steps of 21%."""
    factor = 1.2 if schedule[0] == 1 else 1.25
    model, sent = Model(layers, seconds), all_reduce(2, n * bits / 8, layers)

    def computing(gbit: float) -> float:
        piece = sent.seconds(0, gbit * 1e9 / 8) / layers
        return seconds / seconds_a_step(model, LocalSteps(*schedule), piece)

    for share, gbit in zip(SHARES, published, strict=True):
        assert computing(gbit / factor) < share < computing(gbit * factor)


# ---- schedules, and the times of their steps


def test_each_layer_is_sent_once_a_period_and_the_last_layer_first() -> None:
    assert LocalSteps(6, 2).sent(4) == [[], [], [2, 0], [], [], [3, 1]]
    assert LocalSteps(6, 2, 1).sent(4) == [[], [2, 0], [], [], [3, 1], []]
    for every, fragments, layers in ((1, 1, 3), (7, 3, 5), (3, 5, 9), (100, 8, 24)):
        sent = LocalSteps(every, fragments).sent(layers)
        assert len(sent) == every
        assert sorted(layer for step in sent for layer in step) == [*range(layers)]
        assert all(step == sorted(step, reverse=True) for step in sent)


def test_a_layer_goes_when_its_gradient_is_there_and_the_next_forward_pass_waits_for_it() -> None:
    """Two layers, forward 1 and backward 2 each; an exchange takes 3."""
    (end, spans), (_, later) = steps(Model(2, 6), LocalSteps(), 3, 2)
    link = [(span.start, span.end) for span in spans if span.kind == BACKGROUND]
    assert (end, link) == (6, [(4, 7), (7, 10)])
    compute = [(span.kind, span.start, span.end) for span in later if span.kind != BACKGROUND]
    assert compute == [("wait", 6, 10), ("F", 10, 12), ("B", 12, 16)]


def test_a_fragment_is_applied_later() -> None:
    """Layer 0 alone is sent after each second step, and an exchange takes 7."""
    model = Model(1, 3)
    ends = [[end for end, _ in steps(model, LocalSteps(2, 1, after), 7, 8)] for after in (0, 1, 2)]
    assert ends[0] == [3, 6, 16, 19, 29, 32, 42, 45]
    assert ends[1] == [3, 6, 13, 16, 23, 26, 33, 36]  # sent after the first step of two
    assert ends[2] == [3, 6, 9, 12, 16, 19, 23, 26]  # the second waits for the link until 13


@pytest.mark.parametrize("schedule", [(1, 1, 1), (10, 4, 1), (10, 4, 10), (7, 5, 3), (3, 9, 2)])
@pytest.mark.parametrize("load", [0.3, 0.9, 0.99, 1.01, 2.0])
def test_two_periods_tell_the_mean_of_a_long_run(schedule: Any, load: float) -> None:
    model, local = Model(9, 1.0), LocalSteps(*schedule)
    piece = load * local.every / 9
    ends = [end for end, _ in steps(model, local, piece, 600 * local.every)]
    mean = (ends[-1] - ends[300 * local.every - 1]) / (300 * local.every)
    assert seconds_a_step(model, local, piece) == pytest.approx(mean, rel=0.005)


def test_what_is_sent_is_what_a_ring_sends() -> None:
    for n in (1, 2, 5, 8):
        cost = price(ALGORITHMS["ring"], n, 4000, Network(Link(3, 0.5)))
        layer = all_reduce(n, 4000, 1)
        np.testing.assert_allclose(cost.sent, layer.nbytes)
        np.testing.assert_array_equal(cost.messages, layer.messages)
        assert layer.seconds(3, 2) == pytest.approx(cost.seconds)


def test_the_rate_is_where_the_share_is_reached() -> None:
    model = Model(4, 1.0)

    def seconds(rate: float) -> float:
        return seconds_a_step(model, LocalSteps(5), Sent(1, 1e6).seconds(0.01, rate))

    rate = rate_needed(1 / 0.9, seconds)
    assert 1 / seconds(rate) == pytest.approx(0.9, rel=1e-6)
    assert rate_needed(1 / 0.9999, seconds) is None  # messages alone take more


def test_the_least_rate_is_found_where_seconds_jump_or_stay() -> None:
    def least(limit: float, seconds: Callable[[float], float]) -> float:
        return rate_needed(limit, seconds)

    assert least(1.0, lambda rate: 1.0 if rate >= 5 else 2.0) == pytest.approx(5, rel=1e-6)
    assert least(1.0, lambda rate: max(1.0, 7 / rate)) == pytest.approx(7, rel=1e-6)
    assert least(3.0, lambda rate: 2.0 + 9 / rate) == pytest.approx(9, rel=1e-6)
    assert least(2.0, lambda rate: 1.0) == 1.0


# ---- the command


def test_all_ways_side_by_side(simulator: Any) -> None:
    words = "--parameters 1e9 --replicas 8 --every 10 --fragments 4 --outer-dtype int8"
    words += " --dtype bfloat16"
    rows = json.loads(simulator(f"{words} --json").out)
    assert [(row["name"], row["bytes"] / 1e9, row["messages"]) for row in rows] == [
        ("data parallelism", 3.5, 336),
        ("local, every 10", 0.175, 33.6),
        ("local, every 10, 4 fragments", 0.175, 33.6),
        ("gossip, ring", 4, 48),
        ("gossip, torus", 6, 72),
        ("gossip, exponential", 6, 72),
        ("gossip, complete", 14, 168),
    ]
    assert rows[3]["seconds"] == pytest.approx(0.1 / 3 + 0.2 / 3 / 24 + 3.2)
    lines = simulator(words).out.splitlines()
    assert [line.split("  ")[0] for line in lines[2:]] == [row["name"] for row in rows]
    assert lines[5].split()[2:4] + lines[5].split()[-1:] == ["4", "GB", "0.195"]


def test_pictures_of_timelines_and_of_neighbours(simulator: Any, tmp_path: Path) -> None:
    words = f"--parameters 1e9 --replicas 12 --every 4 --fragments 2 --svg {tmp_path}/x.svg"
    simulator(f"{words} --sync local")
    text = (tmp_path / "x.svg").read_text()
    assert "local, every 4, 2 fragments" in text
    assert "communication in the background" in text
    simulator(f"{words} --sync gossip")
    text = (tmp_path / "x.svg").read_text()
    assert text.count("<circle") == 4 * 12
    assert text.count('z" fill') == 12 * (2 + 4 + 4 + 11)  # arrowheads
