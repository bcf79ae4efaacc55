"""`simulate sync`: the simulated workers, the theory of long runs, and the command."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nnmpi.addons.simulator.commands import sync as synchrony
from nnmpi.schedules.delay import Delay

KIND = "sync"

INF = math.inf


def duration(w: int, step: int) -> float:
    return 5.0 if (7 * w + 3 * step) % 10 == 0 else 1.0


def ends(bound: float, p: int, gradients: int) -> list[float]:
    return [g.end for g in synchrony.simulate(bound, duration, p, gradients)]


# ---- the simulated workers


def test_bsp_waits_for_the_slowest_of_each_step() -> None:
    assert ends(0, 4, 4 * 50)[-1] == sum(
        max(duration(w, step) for w in range(4)) for step in range(50)
    )


def test_asp_never_waits() -> None:
    each = [[sum(duration(w, s) for s in range(step + 1)) for step in range(90)] for w in range(4)]
    assert ends(INF, 4, 200) == sorted(t for times in each for t in times)[:200]


def test_ssp_runs_ahead_up_to_its_bound() -> None:
    """Two workers, one of which never finishes: the other computes bound + 1 gradients."""
    for bound in (1, 3, 10):
        done = synchrony.simulate(bound, lambda w, _: 1.0 if w else 1e3, 2, 40)
        assert sum(g.end < 1e3 for g in done) == bound + 1


def test_staleness_counts_the_gradients_of_others_in_between() -> None:
    done = synchrony.simulate(INF, lambda w, _: 1.0 if w else 2.5, 2, 5)
    assert [(g.worker, g.step, g.staleness) for g in done] == [
        (1, 0, 0),
        (1, 1, 0),
        (0, 0, 2),
        (1, 2, 1),
        (0, 1, 1),
    ]


# ---- theory


def delays(slow: str | None, jitter: str | None, p: int = 4) -> list[Delay]:
    return [Delay.of(slow, jitter, 0, w, p) for w in range(p)]


def test_theory_of_random_delays() -> None:
    d = delays(None, "0.1:5")
    assert synchrony.bsp_time(d) == pytest.approx(1 + 4 * (1 - 0.9**4))
    assert synchrony.ssp_time(d) == synchrony.asp_time(d) == pytest.approx(1.4)


def test_theory_of_one_slow_worker() -> None:
    d = delays("0:3", None)
    assert (synchrony.bsp_time(d), synchrony.ssp_time(d)) == (3, 3)
    assert synchrony.bsp_time(d) / synchrony.asp_time(d) == pytest.approx(2.5)


@pytest.mark.parametrize(("slow", "jitter"), [("0:3,2:1.5", "0.2:2"), (None, "0.5:4")])
def test_theory_is_what_long_simulations_approach(slow: str | None, jitter: str) -> None:
    d, steps = delays(slow, jitter), 1000

    def time(bound: float) -> float:
        done = synchrony.simulate(bound, lambda w, step: d[w].factor(step), 4, 4 * steps)
        return done[-1].end / steps

    assert time(0) == pytest.approx(synchrony.bsp_time(d), rel=0.03)
    assert time(30) == pytest.approx(synchrony.ssp_time(d), rel=0.06)
    assert time(INF) == pytest.approx(synchrony.asp_time(d), rel=0.03)


# ---- the command


def test_all_modes_side_by_side(simulator: Any) -> None:
    out = simulator("--workers 4 --slow-rank 0:3").out
    assert "4 workers, 48 gradients; --slow-rank 0:3" in out
    assert out.splitlines()[2].split()[1:4] == ["36", "1.00", "1.00"]
    assert "bsp: all wait for all in each step\nrank 0  S0------ S1------" in out
    assert "ssp 3: a worker may be 3 steps ahead\n" in out
    assert "rank 1  S0 ......S1 ......" in out.split("ssp 3:")[0]
    assert "rank 1  S0 S1 S2 S3 S4 ...S5" in out.split("ssp 3:")[1]


def test_one_mode_as_json_and_as_a_picture(simulator: Any, tmp_path: Path) -> None:
    result = simulator(
        f"--workers 3 --steps 4 --sync ssp --staleness 1 --svg {tmp_path}/x.svg --json"
    )
    (record,) = json.loads(result.out)
    assert record["sync"] == "ssp"
    assert len(record["steps"]) == 12
    text = (tmp_path / "x.svg").read_text()
    assert text.startswith("<svg")
    assert "ssp 1: a worker may be 1 step ahead" in text


def test_a_long_run_is_not_drawn_as_text(simulator: Any) -> None:
    out = simulator("--workers 4 --steps 500 --jitter 0.1:5").out
    assert "take fewer --steps, or --svg FILE" in out
    assert "rank 0" not in out
