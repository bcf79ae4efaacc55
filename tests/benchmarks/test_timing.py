"""benchmarks/lib/timing.py: warnings of a busy machine, and how far figures can be trusted."""

import pytest
from helpers.benchfiles import Import


def test_a_busy_machine_is_warned_of(module: Import, capsys: pytest.CaptureFixture[str]) -> None:
    timing = module("lib.timing")
    timing.warn_if_busy({"load_before": 0.9, "cores": 2})
    assert capsys.readouterr().err == ""
    timing.warn_if_busy({"load_before": 3.1, "cores": 2})
    assert "the load is 3.1 on 2 cores" in capsys.readouterr().err
    assert timing.machine()["load_before"] >= 0


def test_quartiles_of_paired_rounds(module: Import) -> None:
    timing = module("lib.timing")
    spread = timing.ratio([2.0, 4.0, 6.0, 8.0, 50.0], [1.0, 1.0, 2.0, 2.0, 10.0])
    assert spread == (3.0, 4.0, 4.0)
    assert timing.Spread.of([7.0]) == (7.0, 7.0, 7.0)


def test_trust_is_half_of_the_distance_between_quartiles(module: Import) -> None:
    timing = module("lib.timing")
    rows = [
        {"case": "W1", "ratio": 2.0, "ratio_low": 1.9, "ratio_high": 2.1},
        {"case": "W2", "ratio": 1.0, "ratio_low": 0.8, "ratio_high": 1.2, "subject": "ring"},
        {"case": "W3", "ratio": 1.0, "ratio_low": 0.99, "ratio_high": 1.01},
        {"case": "W4", "seconds": 3},
    ]
    assert timing.trust(rows).startswith("ratios are good to about 5.0% (half of the rounds")
    assert "at worst 20.0%, W2 ring" in timing.trust(rows)
    assert timing.trust(rows[3:]) == ""
