"""The command `python -m nnmpi.tokenize`: the tokens of a text in a file, which trains from there.

Started by mpirun, each rank makes those of its part; the file is the same for any number of ranks.
The folder has no `__init__.py`: so `import tokenize` finds the standard library's module where
Python starts in `nnmpi/`, too.
Exit status: 0 written, 1 failed, 2 unusable arguments, 130 stopped by Ctrl-C.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from nnmpi.comm import Comm, ended
from nnmpi.options import cli
from nnmpi.options.quoting import shown
from nnmpi.options.terms import check_text
from nnmpi.parallel.agreement import all_or_none
from nnmpi.run.command import first_prints, on_ranks
from nnmpi.run.report import Event
from nnmpi.run.tokens import write_tokens
from nnmpi.sim.drawing.tables import plural


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    p = cli.Parser(
        prog=cli.called("nnmpi.tokenize"),
        description="Write the tokens of a text to a file, for --data tokens:FILE.npy.",
        allow_abbrev=False,
    )
    p.add_argument("text", metavar="FILE", help="a file of text")
    p.add_argument("--out", required=True, metavar="FILE.npy", help="where the tokens go")
    p.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="a folder with vocab.json and merges.txt (byte-level BPE), or a tokenizer.json; "
        "default: characters, or bytes of what is no UTF-8",
    )
    p.add_argument("--json", action="store_true", help="print JSON, not text")
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; every rank calls it."""
    return on_ranks("nnmpi.tokenize", lambda comm: _main(comm, arguments), "give a smaller text")


def _main(comm: Comm, arguments: Sequence[str] | None) -> int:
    def read() -> argparse.Namespace:
        with first_prints(comm):  # --help prints once
            given = parser().parse_args(arguments)
        for name in ("text", "out", "tokenizer"):
            if (value := getattr(given, name)) is not None:
                check_text(name, value)
        if not given.out.endswith(".npy"):
            raise ValueError(f"out {shown(given.out)} must end with .npy, as --out tokens.npy")
        return given

    given = all_or_none(comm, read)
    began = time.perf_counter()
    event = tokenized(Path(given.text), Path(given.out), given.tokenizer, comm)
    event["seconds"] = round(time.perf_counter() - began, 4)
    if comm.rank == 0:
        print(json.dumps(event) if given.json else as_text(event), flush=True)
    return 0


def tokenized(text: Path, out: Path, tokenizer: str | None, comm: Comm) -> Event:
    """Writes the file; what is in it. Every rank calls it."""
    found = write_tokens(text, out, tokenizer, comm)
    return {
        "event": "tokenized",
        "file": str(text),
        "bytes": found.bytes,
        "out": str(out),
        "tokens": found.tokens,
        "vocabulary": found.about.size,
        "of": found.about.tokens,
        "dtype": found.dtype,
        "ranks": comm.size,
    }


def as_text(e: Event) -> str:
    """The event in a line."""
    return (
        f"{shown(e['file'])} ({e['bytes']:,} bytes): {e['tokens']:,} {e['of']} "
        f"of a vocabulary of {e['vocabulary']:,}, as {e['dtype']} in {shown(e['out'])}, in "
        f"{e['seconds']:.1f} s on {plural(e['ranks'], 'rank')}"
    )


if __name__ == "__main__":
    sys.exit(ended(main()))
