"""The manifest of a checkpoint: what the run was, and where each number is in which file.

    {"sha256":"<that of what follows, from { to }>","manifest":{...}}

Any byte of it that is another one is found: there is one way to write it.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nnmpi.config import Config
from nnmpi.dtypes import named
from nnmpi.metrics import Share, Sums
from nnmpi.nn.place import Place
from nnmpi.nn.tensor_files import TYPES
from nnmpi.optim.loss_scale import LossScale
from nnmpi.parallel.step.executor import StepState
from nnmpi.parallel.strategy import WorkerPosition
from nnmpi.quoting import shown
from nnmpi.run.checkpoints.values import as_json, from_json
from nnmpi.run.files.atomic import sync
from nnmpi.run.settings import Changes
from nnmpi.run.snapshot import Snapshot
from nnmpi.user_files import parsed

T = TypeVar("T")
NAME = "manifest.json"
FORMAT = 1
"""The version of the format; another one is not read."""

MOST = 1 << 30  # bytes of a manifest: a checkpoint of 10 TB has 700 MB
HEAD, MIDDLE, TAIL = b'{"sha256":"', b'","manifest":', b"}\n"
DIGEST = 64  # characters
FILE_NAME = re.compile(r"rank-\d{5,}\.safetensors")

MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What JSON of another form raises where it is read."""


class DamagedError(ValueError):
    """A checkpoint, or a part of one, is not what was written."""


class InFile(NamedTuple):
    """Numbers in a file: the name of their type, and the byte at which they begin."""

    dtype: str
    at: int


class ArrayInFile(NamedTuple):
    """An array in the file of the first rank, in C order."""

    dtype: str
    at: int
    shape: tuple[int, ...]


class FileRange(NamedTuple):
    """A `SavedRange` whose numbers, `hi - lo` of values and of each sum, are in a file."""

    place: Place
    axes: tuple[int, ...]
    lo: int
    hi: int
    steps: int
    values: InFile
    sums: Mapping[str, InFile]


class SavedFile(NamedTuple):
    """A file of a rank: its size, the SHA-256 of each block of 1 MB, and what is in it."""

    name: str
    size: int
    blocks: tuple[str, ...]
    ranges: tuple[FileRange, ...]


class Manifest(NamedTuple):
    """What is in a checkpoint.

    snapshot   of all ranks; what they had is in the files
    files      of the ranks, in their order
    arrays     in the first file, of what the run has told
    about      what the run has told, as `from_json` takes it: see `Found.about`
    versions   of what has computed
    time       when it was written, in seconds of the epoch
    """

    snapshot: Snapshot
    files: tuple[SavedFile, ...]
    arrays: tuple[ArrayInFile, ...]
    about: Any
    versions: Mapping[str, str]
    time: float

    @property
    def step(self) -> int:
        """The steps that were made."""
        return self.snapshot.state.step

    @property
    def size(self) -> int:
        """The bytes of the files."""
        return sum(file.size for file in self.files)


def to_bytes(manifest: Manifest) -> bytes:
    """The content of the file."""
    whole = {
        "format": FORMAT,
        "time": manifest.time,
        "versions": dict(manifest.versions),
        "run": _run_to_json(manifest.snapshot),
        "about": manifest.about,
        "arrays": [list(one) for one in manifest.arrays],
        "files": [_file_to_json(file) for file in manifest.files],
    }
    body = json.dumps(whole, separators=(",", ":"), allow_nan=False).encode()
    return HEAD + hashlib.sha256(body).hexdigest().encode() + MIDDLE + body + TAIL


def from_bytes(content: bytes) -> Manifest:
    """The manifest; raises DamagedError for what `to_bytes` has not written."""
    start = len(HEAD) + DIGEST
    digest, body = content[len(HEAD) : start], content[start + len(MIDDLE) : -len(TAIL)]
    frame = HEAD + digest + MIDDLE + body + TAIL
    if frame != content or hashlib.sha256(body).hexdigest().encode() != digest:
        raise DamagedError(f"{NAME} is damaged: it is not what its SHA-256 says")
    found: Manifest = parsed(_from_json, body)
    return found


def _from_json(body: str | bytes) -> Manifest:
    """See `from_bytes`; its digest is compared."""
    whole = json.loads(body)
    if whole["format"] != FORMAT:
        raise DamagedError(
            f"{NAME} has version {shown(whole['format'])} of the format, and nnmpi reads {FORMAT}"
        )
    found = Manifest(
        _run_from_json(whole["run"]),
        tuple(map(_file_from_json, whole["files"])),
        tuple(ArrayInFile(*_in_file(row[:2]), _ints(row[2])) for row in whole["arrays"]),
        _is(dict, whole["about"]),
        _is(dict, whole["versions"]),
        _is(float, whole["time"]),
    )
    for one in found.arrays:
        end = one.at + math.prod(one.shape) * named(one.dtype).itemsize
        if min(one.shape, default=0) < 0 or end > found.files[0].size:
            raise DamagedError(f"{NAME} says that an array of shape {one.shape} is where it is not")
    return found


def _is(kind: type[T], value: Any) -> T:
    """The value; raises TypeError for one of another type."""
    if type(value) is not kind:
        raise TypeError(f"{shown(value)} is not of type {kind.__name__}")
    return value


def _ints(values: Iterable[Any]) -> tuple[int, ...]:
    """Whole numbers, as of a shape."""
    return tuple(_is(int, value) for value in values)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest, which is on disk then, like the names in the folder."""
    with (folder / NAME).open("xb") as file:
        file.write(to_bytes(manifest))
        file.flush()
        os.fsync(file.fileno())
    sync(folder)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint whose files are there, with the sizes that it says.

    Raises DamagedError where that is not so. No file but the manifest is read.
    """
    try:
        size = (folder / NAME).stat().st_size
        if size > MOST:
            raise DamagedError(f"{NAME} has {size:,} bytes, more than {MOST:,}")
        manifest = from_bytes((folder / NAME).read_bytes())
        for file in manifest.files:
            found = (folder / file.name).stat().st_size
            if found != file.size:
                raise DamagedError(f"{file.name} has {found:,} bytes, not {file.size:,}")
    except OSError as error:
        name = Path(error.filename or NAME).name
        raise DamagedError(f"{shown(name)}: {error.strerror or error}") from None
    except MALFORMED as error:
        if isinstance(error, DamagedError):
            raise
        raise DamagedError(f"{NAME} cannot be read here: {shown(error)}") from None
    return manifest


# ---- the run


def _run_to_json(snapshot: Snapshot) -> dict[str, Any]:
    arrays: list[np.ndarray] = []
    metrics = {name: [*share] for name, share in snapshot.epoch.metrics.items()}
    found = {
        "options": asdict(snapshot.config),
        "ranks": snapshot.ranks,
        "measured": dict(snapshot.measured),
        "span": snapshot.run,
        "state": [*snapshot.state],
        "skipped": snapshot.skipped,
        "epoch": [*snapshot.epoch[:3], metrics],
        "positions": [[one.worker, one.workers, *one.next] for one in snapshot.positions],
        "changes": [*snapshot.changes],
        "loss_scale": None if snapshot.loss_scale is None else [*snapshot.loss_scale],
    }
    texts: dict[str, Any] = as_json(found, arrays)
    assert not arrays, "sums over the steps of an epoch are numbers"
    return texts


def _run_from_json(texts: Any) -> Snapshot:
    run = from_json(texts, ())
    loss, divisor, samples, metrics = run["epoch"]
    shares = {name: Share(*share) for name, share in metrics.items()}
    positions = (
        WorkerPosition(worker, workers, StepState(*_ints(state)))
        for worker, workers, *state in run["positions"]
    )
    return Snapshot(
        Config(**run["options"]),
        _is(int, run["ranks"]),
        run["measured"],
        run["span"],
        StepState(*_ints(run["state"])),
        run["skipped"],
        Sums(loss, divisor, samples, shares),
        tuple(positions),
        Changes(*run["changes"]),
        (),
        None if run["loss_scale"] is None else LossScale(*run["loss_scale"]),
    )


# ---- the files


def _file_to_json(file: SavedFile) -> dict[str, Any]:
    ranges = [
        [
            *(one.place.path, one.place.shape, one.place.part, one.axes),
            *(one.lo, one.hi, one.steps, one.values, one.sums),
        ]
        for one in file.ranges
    ]
    return {"name": file.name, "bytes": file.size, "sha256": file.blocks, "ranges": ranges}


def _file_from_json(texts: Any) -> SavedFile:
    ranges = (
        FileRange(
            Place(_is(str, path), _ints(shape), tuple((lo, hi) for lo, hi in map(_ints, part))),
            _ints(axes),
            *(_is(int, lo), _is(int, hi), _is(int, steps)),
            _in_file(values),
            {name: _in_file(there) for name, there in sums.items()},
        )
        for path, shape, part, axes, lo, hi, steps, values, sums in texts["ranges"]
    )
    name, size = texts["name"], _is(int, texts["bytes"])
    if not FILE_NAME.fullmatch(name):
        raise DamagedError(f"{NAME} names the file {shown(name)}, which is not that of a rank")
    found = SavedFile(name, size, tuple(texts["sha256"]), tuple(ranges))
    for one in found.ranges:
        _check(one, found.size)
    return found


def _in_file(row: Any) -> InFile:
    """Where numbers are; raises DamagedError for what no file has."""
    dtype, at = row
    if dtype not in TYPES or _is(int, at) < 0:
        raise DamagedError(f"{NAME} has numbers of type {shown(dtype)} at byte {shown(at)}")
    return InFile(dtype, at)


def _check(one: FileRange, size: int) -> None:
    """Raises DamagedError for numbers that are not in a file of so many bytes."""
    n = one.hi - one.lo
    ends = [
        there.at + n * named(there.dtype).itemsize for there in (one.values, *one.sums.values())
    ]
    if not 0 <= one.lo <= one.hi <= one.place.size or max(ends) > size:
        raise DamagedError(f"{NAME} says that {shown(one.place.path)} is where it is not")
