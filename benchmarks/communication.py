"""Loss for bytes: python benchmarks/communication.py [--json F] [--plot F]

Replicas that communicate less, beside data parallelism: from the same weights, with the same
batches, inner optimizer and rates, for as many steps.

    gpt   gpt:4x4x128 on the embedded text, in windows of 32 characters, after 300 steps of one rank
    new   the same with new weights
    cnn   mnist-cnn on MNIST: --data-dir has its files; the two t10k files are enough

Losses are those of test samples at the end of a run. Bytes and messages are what a replica sends in
a step, on average, as the run itself has counted them; sums go round a ring. A ratio is to data
parallelism with the same seed. Replicas are threads, so losses and bytes are measured anywhere, and
say nothing about time.

--network R measures seconds of a step besides, of gpt on the emulated cluster of scripts/cluster
with links of R Mbit/s, a replica on each host; needs root. "predicted" is the price that `simulate
sync` computes from the bytes, the messages and the computing time of a replica.

Rows that the file of --json has already are kept, and their runs are not made again.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from lib import jobs, timing
from lib.communication import network, plot
from lib.communication.run import dataset_of, run, weights
from lib.communication.ways import AGAINST, SUBJECTS, WAYS, Subject, Way
from lib.flags import Parser
from lib.tables import MS, RATIO, Column, table
from lib.timing import Row

import nnmpi
from nnmpi.arrays import blas

SMALL = {"steps": 4, "every": 2, "tested": 8, "before": 0}
"""A subject in short."""
NAMED = ("case", "ranks", "algorithm", "seed", "steps", "options")
"""What a run is known by."""


# ---- rows


def name_of(subject: Subject, way: Way, replicas: int, seed: int) -> Row:
    """The columns that a run is known by; options are those that are not the default."""
    default = asdict(nnmpi.Config())
    options = {k: v for k, v in subject.of(way).items() if v != default[k]}
    words = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in options.items())
    values = subject.name, replicas, way.name, seed, subject.steps, words
    return dict(zip(NAMED, values, strict=True))


def measured(a: argparse.Namespace, facts: Row) -> list[Row]:
    """A row for each run, told when it is there, after those that the file has."""
    rows = {_name(row): row for row in stored(a.json)}
    for (subject, dataset), seed, replicas in product(a.cases, a.seeds, a.replicas):
        for way in a.ways.values():
            row = name_of(subject, way, replicas, seed)
            if _name(row) not in rows:
                begun = weights(subject, dataset, f"{a.folder}/{subject.name}.safetensors")
                done = run(subject, dataset, way, replicas, seed, begun)
                row = {"benchmark": "communication", "section": "loss", **row}
                row |= {"loss": done.loss, "bytes": done.nbytes, "messages": done.messages}
                row |= {f"loss_{point.step}": point.loss for point in done.curve} | facts
                rows[_name(row)] = row
                write(a.json, [*rows.values()])
                told = f"{subject.name}   {replicas} replicas   seed {seed}   {way.name:20}"
                print(f"{told}   loss {done.loss:.4f}", file=sys.stderr, flush=True)
    if a.network:
        try:
            rows |= {_name(row): row for row in network.rows_of(a, [*a.ways], facts)}
        except jobs.JobError as error:
            print(f"network: left out, since there is no emulated cluster: {error}")
    return [*rows.values()]


def _name(row: Row) -> tuple[object, ...]:
    return tuple(row.get(key) for key in NAMED)


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """The rows, with loss and bytes over those of data parallelism from the same seed."""
    against = {_run(row): row for row in rows if row["algorithm"] == WAYS[AGAINST].name}
    ratios = {"ratio": "loss", "bytes_ratio": "bytes"}
    return [
        row
        | {name: row[key] / against[_run(row)][key] for name, key in ratios.items()}
        | {"against": WAYS[AGAINST].name}
        if row["section"] == "loss"
        else row
        for row in rows
    ]


def _run(row: Row) -> tuple[object, ...]:
    return row["section"], row["case"], row["ranks"], row.get("seed")


def stored(path: str | None) -> list[Row]:
    """The rows that a file has already."""
    if not path or not Path(path).exists():
        return []
    rows: list[Row] = json.loads(Path(path).read_text(encoding="utf-8"))
    return rows


def write(path: str | None, rows: Sequence[Row]) -> None:
    """Write the rows so far, lest an end of the program loses them."""
    if path:
        Path(path).write_text(json.dumps([*rows], indent=1) + "\n", encoding="utf-8")


# ---- tables


def means(rows: Sequence[Row]) -> list[Row]:
    """A row for each way: means over its seeds, and the least and the largest ratio."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["case"], row["ranks"], row["algorithm"]), []).append(row)
    keys = ("loss", "ratio", "bytes", "bytes_ratio", "messages")
    return [
        {**of[0], **{key: statistics.mean(row[key] for row in of) for key in keys}}
        | {"ratio_low": min(r["ratio"] for r in of), "ratio_high": max(r["ratio"] for r in of)}
        for of in groups.values()
    ]


COLUMNS = (
    Column("loss", "loss", "{:.4f}"),
    Column("over dp", "ratio"),
    Column("from", "ratio_low"),
    Column("to", "ratio_high"),
    Column("MB a step", "bytes", "{:.4g}", 1e-6),
    Column("over dp", "bytes_ratio", "{:.4f}"),
    Column("messages", "messages", "{:.4g}"),
)
TIMES = (MS("ms a step", "seconds"), *RATIO, MS("predicted", "predicted_seconds"))


def show(rows: Sequence[Row]) -> None:
    """Print a table for each subject and number of replicas, and for the network."""
    made = means([row for row in rows if row["section"] == "loss"])
    for case, replicas in dict.fromkeys((row["case"], row["ranks"]) for row in made):
        shown = [row for row in made if (row["case"], row["ranks"]) == (case, replicas)]
        print(table(f"\n{case}, {replicas} replicas", COLUMNS, shown, lambda r: r["algorithm"]))
    timed = [row for row in rows if row["section"] == "network"]
    if timed:
        rate = timed[0]["bits_per_second"] / 1e6
        title = f"\n{timed[0]['case']}, {timed[0]['ranks']} hosts, {rate:g} Mbit/s"
        print(table(title, TIMES, timed, lambda r: r["algorithm"]))


# ---- the command


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse and check the flags, so that mistakes do not surface after minutes of measuring."""
    p = Parser(__doc__, "losses over bytes and seconds")
    p.add_argument("--cases", default=",".join(SUBJECTS), help=f"which of {', '.join(SUBJECTS)}")
    p.add_argument("--ways", default=",".join(WAYS), help=f"which of {', '.join(WAYS)}")
    p.add_argument("--replicas", default="4,8", help="numbers of replicas")
    p.add_argument("--seeds", default="0,1,2", help="of weights and batches")
    p.add_argument("--data-dir", metavar="DIR", help="with the files of MNIST")
    p.add_argument("--network", type=float, metavar="R", help="links of R Mbit/s")
    p.add_argument("--hosts", type=int, default=4, help="of the emulated cluster")
    p.add_argument("--rounds", type=int, default=3, help="in which seconds are measured")
    p.add_argument("--small", action="store_true", help="few steps: to see that it runs")
    a = p.parse_args(argv)
    for given, there in ((a.cases, SUBJECTS), (a.ways, WAYS)):
        for unknown in [name for name in given.split(",") if name not in there]:
            p.error(f"{unknown!r} is not one of {', '.join(there)}")
    if AGAINST not in a.ways.split(","):
        p.error(f"--ways {a.ways} lacks {AGAINST}, which the others are compared with: add it")
    subjects = [SUBJECTS[name] for name in a.cases.split(",")]
    subjects = [s._replace(**SMALL) for s in subjects] if a.small else subjects
    a.ways = {name: WAYS[name] for name in a.ways.split(",")}
    if a.small:
        a.ways = {name: way.short() for name, way in a.ways.items()}
    a.replicas, a.seeds = ([int(n) for n in text.split(",")] for text in (a.replicas, a.seeds))
    p.check_outputs(a)
    try:
        a.cases = [(subject, dataset_of(subject, a.data_dir)) for subject in subjects]
    except (OSError, ValueError) as error:
        p.error(f"{str(error).removesuffix(', or fetch them with --download')}; or --cases gpt")
    return a


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write the results."""
    a = parse(argv)
    blas.tune()
    blas.default_threads(1)
    facts = timing.machine()
    with TemporaryDirectory() as a.folder:
        rows = with_ratios(measured(a, facts))
    show(rows)
    timing.finish(a.json, rows)
    if a.plot:
        plot.draw(rows, a.plot)
        print(f"plot written to {a.plot}", file=sys.stderr)


if __name__ == "__main__":
    main()
