"""The command `python -m nnmpi.tokenize`: writes the tokens of a text to a file for training.

With mpirun, each rank tokenizes a part; the file is the same for any number of ranks:

the text    rank 0      | rank 1      | rank 2         cut where this does not change the tokens
spools      0 0 0 0     1 1 1     2 2 2 2 2            temporary files, until the counts are known
the file    header 0 0 0 0 1 1 1 2 2 2 2 2 line        each rank writes its part in its place

Exit status: 0 written, 1 failed, 2 unusable arguments, 130 stopped by Ctrl-C.
"""

import argparse
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from nnmpi.addons.language.data.pieces import CHARACTERS, next_cut, pieces
from nnmpi.addons.language.data.text import characters, small_type, tokenizer_of_points
from nnmpi.addons.language.data.tokenizer import BPETokenizer, Tokenizer, vocabulary_of
from nnmpi.addons.language.data.windows import TokenInfo, held_out
from nnmpi.comm import Comm
from nnmpi.io.files.atomic import check_target, replaced
from nnmpi.io.output import Event
from nnmpi.options import cli
from nnmpi.options.amounts import plural
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import RefusedError, check_regular
from nnmpi.options.value_forms import check_text
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.run import rank_agreement
from nnmpi.run.command import run_on_ranks

BLOCK = 1 << 20  # bytes
REMEDY = "give a file of text"


def parser() -> cli.Parser:
    """The parser of the command's options."""
    about = "Write the tokens of a text to a file, for --data tokens:FILE.npy."
    p = cli.Parser("nnmpi.tokenize", description=about)
    p.add_argument("text", metavar="FILE", help="the text file to read")
    p.add_argument("--out", required=True, metavar="FILE.npy", help="the file to write")
    p.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="a folder with vocab.json and merges.txt (byte-level BPE), or a tokenizer.json; "
        "default: a token per character, or per byte if the text is not UTF-8",
    )
    p.add_argument("--json", action="store_true", help="print the result as JSON, not as text")
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status; every rank calls it."""
    return run_on_ranks(parser(), command, arguments, "give a smaller text")


def command(comm: Comm, given: argparse.Namespace) -> int:
    """Checks the options, writes the file, and prints a summary of it; every rank calls it."""

    def check() -> None:
        for name in ("text", "out", "tokenizer"):
            if (value := getattr(given, name)) is not None:
                check_text(name, value)
        if not given.out.endswith(".npy"):
            raise ValueError(f"out {shown(given.out)} must end with .npy, as --out tokens.npy")

    all_or_none(comm, check)
    began = time.perf_counter()
    event = tokenized(Path(given.text), Path(given.out), given.tokenizer, comm)
    event["seconds"] = round(time.perf_counter() - began, 4)
    if comm.rank == 0:
        print(json.dumps(event) if given.json else as_text(event), flush=True)
    return 0


def as_text(e: Event) -> str:
    """Returns a line of text about a file of tokens, from the dict that `tokenized` returns."""
    return (
        f"{shown(e['file'])} ({e['bytes']:,} bytes): {e['tokens']:,} {e['of']} "
        f"of a vocabulary of {e['vocabulary']:,}, as {e['dtype']} in {shown(e['out'])}, in "
        f"{e['seconds']:.1f} s on {plural(e['ranks'], 'rank')}"
    )


# ---- the file


def tokenized(text: Path, out: Path, tokenizer: str | None, comm: Comm) -> Event:
    """Writes the tokens of a text to the file `out`, atomically; returns a dict that describes the
    file. With no `tokenizer`, a path, tokens are characters.

    Every rank calls it. A rank holds one piece of the text in memory, and its tokens in an unnamed
    temporary file (a spool) in the folder of `out`.
    """
    # every step that can fail on one rank alone is followed by an agreement, so that none hangs
    all_or_none(comm, lambda: check_target(out, "write"))
    rank_agreement.check_given(comm, {"tokenizer": tokenizer})
    rank_agreement.check_files(comm, f"the text {shown(text)}", lambda: [text], REMEDY)
    encoder = _tokenizer(text, tokenizer, comm)
    vocabulary = vocabulary_of(encoder.describe())
    rank_agreement.check_given(comm, {"the vocabulary": vocabulary}, rank_agreement.FILES)
    dtype = small_type(encoder)
    with ExitStack() as stack:

        def spooled() -> tuple[IO[bytes], int]:
            spool = stack.enter_context(tempfile.TemporaryFile(dir=out.parent))
            return spool, sum(_spool(text, encoder, dtype, comm, spool))

        spool, count = all_or_none(comm, spooled)
        counts = gather_objects(comm, count)
        n, begin = sum(counts), sum(counts[: comm.rank])
        if not n:
            comm.agree(ValueError(f"{shown(text)} is empty; {REMEDY}"))
        lengths, first = encoder.lengths(), held_out(n).start - begin
        units = sum(gather_objects(comm, _units(spool, lengths, dtype, first)))
        about = TokenInfo.of(encoder, units)
        _write(out, _header(dtype, n), begin * dtype.itemsize, spool, about.line(), comm)
    return {
        "event": "tokenized",
        "file": str(text),
        "bytes": text.stat().st_size,
        "out": str(out),
        "tokens": n,
        "vocabulary": about.size,
        "of": about.tokens,
        "dtype": dtype.name,
        "ranks": comm.size,
    }


def _tokenizer(text: Path, path: str | None, comm: Comm) -> Tokenizer:
    """Returns the tokenizer at `path`, or one of the text's characters."""
    if path is not None:
        return all_or_none(comm, lambda: BPETokenizer(path))
    points_here = all_or_none(comm, lambda: characters(_texts(text, CHARACTERS, comm)))
    of_ranks = gather_objects(comm, points_here)
    known = [points for points in of_ranks if points is not None]
    return tokenizer_of_points(
        np.unique(np.concatenate(known)) if len(known) == comm.size else None
    )


def _texts(text: Path, cuts: re.Pattern[bytes], comm: Comm) -> Iterator[bytes]:
    """Yields this rank's part of the text piece by piece, cut only where `cuts` matches: cuts
    elsewhere would change its tokens."""
    try:
        check_regular(text)
        with text.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            ends = (size * rank // comm.size for rank in (comm.rank, comm.rank + 1))
            begin, end = (next_cut(file, place, cuts) for place in ends)
            file.seek(begin)
            yield from pieces(file, cuts, length=end - begin)
            if file.tell() < end:
                raise RefusedError(f"{shown(text)} became shorter while it was read; {REMEDY}")
    except OSError as error:
        raise RefusedError(f"{shown(text)} cannot be read: {error.strerror}; {REMEDY}") from None


def _spool(
    text: Path, tokenizer: Tokenizer, dtype: np.dtype[Any], comm: Comm, spool: IO[bytes]
) -> Iterator[int]:
    """Tokenizes this rank's part of the text to `spool`; yields the number of tokens in each
    piece."""
    try:
        for piece in _texts(text, tokenizer.cuts, comm):
            encoded = tokenizer.encode(piece)
            spool.write(encoded.astype(dtype).tobytes())
            yield len(encoded)
    except RefusedError:  # its message names the file already
        raise
    except ValueError as error:
        raise ValueError(f"{shown(text)}: {error}") from None


def _units(spool: IO[bytes], lengths: np.ndarray, dtype: np.dtype[Any], first: int) -> int:
    """Returns how many characters or bytes the tokens in `spool`, from number `first` on, stand
    for, given the `lengths` of each token."""
    spool.seek(max(first, 0) * dtype.itemsize)
    blocks = iter(lambda: spool.read(BLOCK), b"")
    return sum(int(lengths[np.frombuffer(block, dtype)].sum()) for block in blocks)


def _header(dtype: np.dtype[Any], n: int) -> bytes:
    stream = BytesIO()
    shape = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (n,)}
    npy.write_array_header_1_0(stream, shape)
    return stream.getvalue()


def _write(out: Path, header: bytes, begin: int, spool: IO[bytes], line: bytes, comm: Comm) -> None:
    """Writes the file of tokens: rank 0 creates it with its header, and each rank writes its tokens
    at byte `begin` of the data."""
    with ExitStack() as stack:

        def made() -> IO[bytes]:
            file = stack.enter_context(replaced(out, "wb"))
            file.write(header)
            file.flush()
            return file

        def placed() -> None:
            spool.seek(0)
            with open(part, "r+b") as place:
                place.seek(len(header) + begin)
                shutil.copyfileobj(spool, place, BLOCK)
                place.flush()
                os.fsync(place.fileno())

        def ended() -> None:
            if file is not None:
                file.seek(0, os.SEEK_END)
                file.write(line)
            stack.close()

        # each phase ends in an agreement, so no rank writes to a file that rank 0 could not make,
        # and rank 0 renames it (as `stack` closes) only after all parts are on disk
        file = all_or_none(comm, lambda: made() if comm.rank == 0 else None)
        part = gather_objects(comm, str(file.name) if file else "")[0]
        all_or_none(comm, placed)
        all_or_none(comm, ended)
