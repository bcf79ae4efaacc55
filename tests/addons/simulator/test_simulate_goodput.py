"""`simulate goodput`: closed forms, the event simulation held to them, and the command."""

import json
import math
from typing import Any
from xml.etree import ElementTree

import pytest

from nnmpi.addons.simulator import goodput
from nnmpi.addons.simulator.goodput import Backup, Job, Run, Spares

KIND = "goodput"

HOUR, DAY = 3600.0, 86400.0
FAILURES = 20_000

# ---- mean times to failure


@pytest.mark.parametrize(
    ("gpus", "hours"), [(16_384, 1.80), (131_072, 0.225), (1_024, 28.8)], ids=lambda x: f"{x}"
)
def test_the_law_of_metas_table(gpus: int, hours: float) -> None:
    """6.50 failures in 1,000 node-days, 8 GPUs a node; for 1,024 GPUs Meta observed 7.9 h."""
    job = Job(gpus // 8, 1000 * DAY / 6.5, 60, 300, 900)
    assert job.mttf / HOUR == pytest.approx(hours, rel=2e-3)


# ---- closed forms


def test_without_failures_only_checkpoints_take_time() -> None:
    assert goodput.daly(900, 60, 300, math.inf) == 900 / 960
    assert goodput.daly(900, 60, 300, 1e15) == pytest.approx(900 / 960, rel=1e-11)


def test_with_failures_all_the_time_nothing_is_done() -> None:
    assert goodput.daly(900, 60, 300, 1e-3) == 0


def test_dalys_complete_model() -> None:
    m, every, write, restart = 1000.0, 200.0, 20.0, 50.0
    text = every / (m * math.exp(restart / m) * (math.exp((every + write) / m) - 1))
    assert goodput.daly(every, write, restart, m) == pytest.approx(text, rel=1e-12)


@pytest.mark.parametrize("write", [1.0, 20.0, 300.0])
@pytest.mark.parametrize("mttf", [600.0, 6480.0, 52_700.0])
def test_no_interval_is_better_than_the_best(write: float, mttf: float) -> None:
    best = goodput.best_interval(write, mttf)
    most = goodput.daly(best, write, 300, mttf)
    grid = [best * 1.01**k for k in range(-400, 400) if k]
    assert all(goodput.daly(every, write, 300, mttf) < most for every in grid)
    assert goodput.daly_interval(write, mttf) == pytest.approx(best, rel=0.02)


def test_intervals_of_young_and_daly() -> None:
    assert goodput.young_interval(2, 10_000) == 200
    assert goodput.daly_interval(2, 10_000) == pytest.approx(200 * (1 + 0.01 / 3 + 1e-4 / 9) - 2)
    assert goodput.daly_interval(30, 10) == 10  # a checkpoint takes longer than ranks live


# ---- the event simulation


def test_a_run_goes_back_to_its_last_checkpoint() -> None:
    run = Run(Job(2, DAY, write=10, restart=30, every=100))
    run.advance(230)  # two checkpoints, and 10 s of the third cycle
    assert run.done == 210
    run.fail()
    assert run.done == 200
    run.advance(20)
    run.fail()  # in the restart, which begins anew
    run.advance(45)
    assert (run.done, run.clock) == (215, 295)


def test_a_run_goes_back_to_copies_unless_both_are_lost() -> None:
    job = Job(4, DAY, write=10, restart=300, every=100, backup=Backup(25, 5))
    run = Run(job)
    run.advance(60)
    run.fail(draw=0.0)  # a copy of all was made
    assert run.done == 50
    run.advance(5 + 20)
    run.fail(draw=0.3)  # not the partner, which is one of four
    assert run.done == 50
    run.advance(5)
    run.fail(draw=0.2)  # the partner
    assert run.done == 0
    run.advance(300 + 25)
    run.fail(draw=0.2)
    assert run.done == 25


def test_nodes_without_a_spare_are_missing_until_they_are_repaired() -> None:
    run = Run(Job(4, DAY, write=1, restart=10, every=1e6, spares=Spares(1, 100)))
    run.fail()
    run.advance(10)
    run.fail()  # two are lost, and one is replaced
    run.advance(10 + 80)  # at 3/4 of the speed
    assert run.done == 60
    run.advance(20)  # the first is back
    assert run.done == 80


def test_a_job_whose_nodes_are_all_in_repair_does_nothing() -> None:
    job = Job(8, HOUR, write=10, restart=10, every=100, spares=Spares(0, 2 * HOUR))
    assert goodput.expected(job) == 0
    assert goodput.simulate(job, FAILURES)[0] < 0.01


PLAIN = Job(2048, 22_800 * 1000, 60, 300, 900)
JOBS = {
    "checkpoints": PLAIN,
    "seldom": PLAIN._replace(every=9000),
    "each second is a failure in ten": PLAIN._replace(nodes=2**20, restart=5, write=2, every=8),
    "no write": PLAIN._replace(write=0),
    "restart longer than the time to failure": PLAIN._replace(restart=20_000),
    "backup": PLAIN._replace(backup=Backup(60, 30)),
    "backup, long": PLAIN._replace(backup=Backup(600, 300)),
    "spares": PLAIN._replace(spares=Spares(2, DAY)),
    "no spares": PLAIN._replace(spares=Spares(0, DAY)),
    "backup and spares": PLAIN._replace(backup=Backup(60, 30), spares=Spares(1, DAY)),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_the_simulation_agrees_with_the_closed_form(job: Job) -> None:
    share, error = goodput.simulate(job, FAILURES, seed=1)
    assert 0 < error < 0.02
    assert share == pytest.approx(goodput.expected(job), abs=3 * error)


def test_partners_that_are_lost_together_go_back_to_a_checkpoint() -> None:
    job = Job(4, 4 * 6000, 60, 300, 3000, Backup(600, 300))
    share, error = goodput.simulate(job, FAILURES)
    assert share == pytest.approx(goodput.expected(job), rel=0.006)
    never = goodput.daly(600, 0, 300, job.mttf) * 3000 / 3060
    assert share < never - 5 * error


# ---- the command

EXAMPLE = "--mttf-node 30000h --checkpoint 60s --restart 300s --ranks 16384"


def test_the_tables(simulator: Any) -> None:
    result = simulator(EXAMPLE)
    assert (result.status, result.err) == (0, "")
    heading, intervals, ranks = result.out.split("\n\n")
    assert heading == (
        "goodput: 2,048 nodes of 8 ranks, one is lost every 14.65 h; checkpoint 60 s, restart 300 s"
    )
    assert [line.split()[0] for line in intervals.splitlines()] == [
        *("interval", "best", "Daly", "Young")
    ]
    assert ranks.splitlines()[6].split()[:2] == ["checkpoints", "16,384"]


def test_times_may_have_exponents(simulator: Any) -> None:
    assert simulator(EXAMPLE.replace("30000h", "3e4h")).out == simulator(EXAMPLE).out


def test_json_has_each_case(simulator: Any) -> None:
    out = simulator(f"{EXAMPLE} --every 1h --backup --recover 30s --spares 2 --json").out
    records = json.loads(out)
    assert [*dict.fromkeys(r["case"] for r in records)] == [
        *("best", "Daly", "Young", "given", "checkpoints", "and --backup", "and --spares 2")
    ]
    at = {r["case"]: r for r in records if r["ranks"] == 16_384}
    assert at["given"]["every"] == at["checkpoints"]["every"] == HOUR
    assert at["checkpoints"]["closed_form"] < at["and --spares 2"]["closed_form"]
    assert at["and --spares 2"]["closed_form"] < at["and --backup"]["closed_form"]
    for record in records:
        assert record["simulated"] == pytest.approx(
            record["closed_form"], abs=4 * record["standard_error"] + 1e-6
        )


def test_the_picture_has_a_line_for_each_case(simulator: Any, tmp_path: Any) -> None:
    picture = tmp_path / "goodput.svg"
    simulator(f"{EXAMPLE} --backup --svg {picture}")
    root = ElementTree.parse(picture).getroot()
    texts = [node.text for node in root.iter() if node.tag.endswith("text")]
    assert {"checkpoints", "and --backup", "16,384", "100%", "ranks"} <= {*texts}
    assert sum(node.tag.endswith("circle") for node in root.iter()) == 2 * 8
