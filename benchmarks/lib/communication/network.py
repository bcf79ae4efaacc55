"""Seconds of a step of each way, a replica on each host of the emulated cluster."""

import argparse
from collections.abc import Sequence
from dataclasses import replace

import nnmpi
from lib import ranks
from lib.communication.run import config_of, dataset_of, run
from lib.communication.ways import AGAINST, SUBJECTS, WAYS, Way
from lib.ranks import Steps
from lib.timing import Row, Spread, ratio
from nnmpi.addons.simulator.replicas import Model, seconds_a_step
from nnmpi.arrays import blas
from nnmpi.comm import world
from nnmpi.schedules.local_steps import LocalSteps

SUBJECT = "gpt"
ALONE = "alone"
"""The case in which replicas compute at the same time, and send nothing."""
SECONDS = 3.0  # of a way in a round, or a period
LAYERS = 4  # of the price: data parallelism sends four buckets
STEPS = 1000  # within an epoch


def steps(name: str, _: int | None = None) -> Steps:
    """A function that makes so many periods of a way on this rank; a period is one step, or a
    round."""
    comm, subject, way = world(), SUBJECTS[SUBJECT], WAYS[AGAINST if name == ALONE else name]
    config = config_of(subject._replace(steps=STEPS), way, 0)
    if name == ALONE:
        config = replace(config, batch_size=config.batch_size // comm.size)
        comm = comm.split(comm.rank)
    trainer = nnmpi.Trainer(config, data=dataset_of(subject, None), comm=comm)
    made, end = trainer.strategy.steps(trainer.train, trainer.state), 0

    def periods(n: int) -> None:
        nonlocal end
        trainer.model.train()
        end += n * way.period
        while next(made).state.step < end:
            pass

    return periods


def main(*words: str) -> None:
    """Answer a question, on every rank."""
    blas.tune()
    ranks.answer({}, steps, *words)


# ---- rows


def rows_of(a: argparse.Namespace, ways: Sequence[str], facts: Row) -> list[Row]:
    """A row for each way, with its price; raises JobError where there is no cluster."""
    names, rate = [ALONE, *ways], a.network * 1e6
    words = [str(a.rounds), str(SECONDS), *names]
    found = ranks.over_network(__name__, a.hosts, rate, words, 600)
    periods = {ALONE: 1} | {name: WAYS[name].period for name in ways}
    times = {
        name: [seconds / periods[name] for seconds in rounds]
        for name, rounds in zip(names, found, strict=True)
    }
    alone = Spread.of(times[ALONE]).median
    rows = [
        _row(WAYS[name], times[name], times[AGAINST], a.hosts)
        | {"computing_seconds": alone, "bits_per_second": rate}
        | facts
        for name in ways
    ]
    for row, name in zip(rows, ways, strict=True):
        row["predicted_seconds"] = price(WAYS[name], row["bytes"], alone, rate)
    return rows


def _row(way: Way, times: Sequence[float], against: Sequence[float], hosts: int) -> Row:
    over, subject = ratio(times, against), SUBJECTS[SUBJECT]
    short = subject._replace(steps=2 * way.period, every=STEPS, tested=hosts)
    sent = run(short, dataset_of(short, None), way, hosts, 0)
    return {
        "benchmark": "communication",
        "section": "network",
        "case": subject.name,
        "ranks": hosts,
        "algorithm": way.name,
        "seconds": Spread.of(times).median,
        "bytes": sent.nbytes,
        "messages": sent.messages,
        "ratio": over.median,
        "ratio_low": over.low,
        "ratio_high": over.high,
        "against": WAYS[AGAINST].name,
        "rounds": len(times),
    }


def price(way: Way, nbytes: float, computing: float, rate: float) -> float:
    """The seconds of a step by the model of `simulate sync`, without latency."""
    o, local = way.options, way.options.get("sync") == "local"
    schedule = LocalSteps(
        way.period if local else 1, int(o.get("fragments", 1)), int(o.get("apply_after", 0))
    )
    piece = nbytes * schedule.every / LAYERS * 8 / rate
    return seconds_a_step(Model(LAYERS, computing), schedule, piece)
