"""The manifest of a checkpoint: what the run was, and which elements are where in which file.

    {"sha256":"<digest of what follows, from { to }>","manifest":{...}}

A change of any byte is noticed: there is one way to write it.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nnmpi.io.checkpoints.forms import ArrayInFile, ManifestForm, RunFacts, RunForm, SavedFile
from nnmpi.io.checkpoints.rank_file import RankFile, laid_out
from nnmpi.io.checkpoints.schema import NAME, DamagedError, as_json, checked, from_json, refused
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.io.files.atomic import sync
from nnmpi.metrics import MetricSum, Sums
from nnmpi.optim.loss_scale import LossScale
from nnmpi.options.config import Config
from nnmpi.options.quoting import quoted, shown
from nnmpi.options.user_files import check_regular, parsed
from nnmpi.parallel.model.snapshot import REPLICA
from nnmpi.parallel.step.executor import StepState
from nnmpi.parallel.strategy import WorkerPosition

T = TypeVar("T")

FORMAT = 1
"""The version of the format, also of the headers of files; other versions are not read."""

MOST = 1 << 30  # bytes of a manifest: a checkpoint of 10 TB has 700 MB
HEAD, MIDDLE, TAIL = b'{"sha256":"', b'","manifest":', b"}\n"
DIGEST = 64  # characters
RUN, ABOUT = "manifest.run", "manifest.about"
LARGEST_SCALE = 2.0**127  # of a loss in float32


class Outcome(NamedTuple):
    """The facts that are compared for all checkpoints of a directory.

    metrics    of the evaluation after which it was written; empty if there was none
    restored   the steps that `restore` had taken the run to, in order
    is_whole   whether all its files are there, with the right sizes
    """

    metrics: Mapping[str, float]
    restored: tuple[int, ...]
    is_whole: bool


class Manifest(NamedTuple):
    """The list of what is in a checkpoint.

    snapshot    of all ranks, without the ranges that are in files
    files       of the ranks, in their order
    arrays      in the first file: those of the run's facts
    about_json  the facts about the run, by `as_json`
    versions    of the software that computed it
    time        when it was written, in seconds since the epoch
    """

    snapshot: Snapshot
    files: tuple[SavedFile, ...]
    arrays: tuple[ArrayInFile, ...]
    about_json: Any
    versions: Mapping[str, str]
    time: float

    @property
    def step(self) -> int:
        """The number of steps that the run had made."""
        return self.snapshot.state.step

    @property
    def size(self) -> int:
        """The bytes of all files together."""
        return sum(file.bytes for file in self.files)

    def about(self, arrays: Sequence[Any] | None = None) -> RunFacts:
        """The facts about the run; its arrays are given by `arrays`, or else replaced by their
        places in the file."""
        fields = from_json(self.about_json, arrays or self.arrays, ABOUT)
        about: RunFacts = checked(fields, RunFacts, ABOUT)
        return about

    def rank_file(self, rank: int) -> RankFile:
        """The layout of a rank's file, computed again from its ranges and arrays."""
        ranges = [array.map(attrgetter("dtype")) for array in self.files[rank].ranges]
        return laid_out(
            rank, ranges, [(array.dtype, array.shape) for array in self.arrays] * (not rank)
        )


def to_bytes(manifest: Manifest) -> bytes:
    """The content of manifest.json."""
    content = {
        "format": FORMAT,
        "time": manifest.time,
        "versions": dict(manifest.versions),
        "run": _run_to_json(manifest.snapshot),
        "about": manifest.about_json,
        "arrays": manifest.arrays,
        "files": [vars(file) for file in manifest.files],
    }
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    return HEAD + hashlib.sha256(body).hexdigest().encode() + MIDDLE + body + TAIL


def parsed_by(read: Callable[[Any], T], content: bytes) -> T:
    """The result of `read` for the JSON of a manifest; raises DamagedError for another format, a
    wrong SHA-256, or content that cannot be read."""
    start = len(HEAD) + DIGEST
    digest, body = content[len(HEAD) : start], content[start + len(MIDDLE) : -len(TAIL)]
    frame = HEAD + digest + MIDDLE + body + TAIL
    if frame != content or hashlib.sha256(body).hexdigest().encode() != digest:
        raise DamagedError(f"{NAME} is damaged: it does not match its SHA-256")
    try:
        value = parsed(json.loads, body)
        version = value.get("format") if isinstance(value, dict) else None
        if version != FORMAT:
            raise DamagedError(
                f"{NAME} has version {shown(version)} of the format, and nnmpi reads {FORMAT}"
            )
        result: T = parsed(read, value)
    except DamagedError:
        raise
    except (LookupError, TypeError, ValueError) as error:
        raise DamagedError(
            f"{NAME} is undamaged, but not as this nnmpi writes it: {shown(error)}"
        ) from None
    return result


def from_bytes(content: bytes) -> Manifest:
    """The manifest with this content; raises DamagedError for anything that `to_bytes` does not
    write."""
    return parsed_by(_from_json, content)


def _from_json(value: Any) -> Manifest:
    form: ManifestForm = checked(value, ManifestForm, "manifest")
    files = form.files
    snapshot = _run_from_json(checked(from_json(form.run, (), RUN), RunForm, RUN))
    manifest = Manifest(snapshot, files, form.arrays, form.about, form.versions, form.time)
    if snapshot.ranks != len(files):
        raise refused(f"{RUN}.ranks", f"{snapshot.ranks:,}, but there are {len(files):,} files")
    for rank, file in enumerate(files):
        made = manifest.rank_file(rank)
        _check_file(f"manifest.files[{rank}]", file, made.saved)
        if rank == 0 and made.arrays != form.arrays:
            raise refused("manifest.arrays", "not at the positions where nnmpi writes these arrays")
    tensors, ranges = manifest.about().tensors, (saved for f in files for saved in f.ranges)
    paths = {saved.path for saved in ranges if REPLICA not in saved.path}
    names, first = {saved.name for saved in tensors}, {saved.first for saved in tensors}
    if len(names) < len(tensors) or not paths <= first:
        raise refused(f"{ABOUT}.tensors", "not the tensors that the files have")
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes manifest.json, and syncs it and the folder to disk."""
    with (folder / NAME).open("xb") as file:
        file.write(to_bytes(manifest))
        file.flush()
        os.fsync(file.fileno())
    sync(folder)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint; raises DamagedError if it is damaged, or if files are missing
    or have other sizes. Only the manifest is read."""
    manifest = from_bytes(_content(folder))
    _check_sizes(folder, [(file.name, file.bytes) for file in manifest.files])
    _check_step(folder, manifest.step)
    return manifest


def read_outcome(folder: Path) -> Outcome:
    """The Outcome in the manifest of a checkpoint.

    Raises DamagedError for a damaged manifest, another format or step. Other fields are not
    compared with their types, which takes ten times as long.
    """

    def outcome(value: Any) -> Outcome:
        _check_step(folder, int(from_json(value["run"], (), RUN)["state"][0]))
        about, is_whole = value["about"], True
        try:
            _check_sizes(folder, [(file["name"], file["bytes"]) for file in value["files"]])
        except DamagedError:
            is_whole = False
        restored = from_json(about.get("restored", []), (), ABOUT)
        return Outcome(from_json(about["metrics"], (), ABOUT), tuple(restored), is_whole)

    return parsed_by(outcome, _content(folder))


def _check_step(folder: Path, step: int) -> None:
    number = re.search(r"step-(\d+)", folder.name)
    if number and int(number[1]) != step:
        raise refused(f"{RUN}.state.step", f"{step:,}, but the folder is {folder.name}")


def _content(folder: Path) -> bytes:
    with _readable():
        check_regular(folder / NAME, MOST)
        return (folder / NAME).read_bytes()


def _check_sizes(folder: Path, files: Iterable[tuple[str, int]]) -> None:
    for name, nbytes in files:
        with _readable():
            size = (folder / name).stat().st_size
        if size != nbytes:
            raise DamagedError(f"{name} has {size:,} bytes, not {nbytes:,}")


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        name = Path(error.filename or NAME).name
        raise DamagedError(f"{shown(name)}: {error.strerror or error}") from None


# ---- the run


def _run_to_json(snapshot: Snapshot) -> dict[str, Any]:
    arrays: list[np.ndarray] = []
    metrics = {name: [*share] for name, share in snapshot.epoch.metrics.items()}
    form = {
        "options": asdict(snapshot.config),
        "ranks": snapshot.ranks,
        "measured": dict(snapshot.measured),
        "span": snapshot.run,
        "state": [*snapshot.state],
        "skipped": snapshot.skipped,
        "epoch": [*snapshot.epoch[:3], metrics],
        "positions": [
            [position.worker, position.workers, *position.next] for position in snapshot.positions
        ],
        "changes": [*snapshot.changes],
        "loss_scale": None if snapshot.loss_scale is None else [*snapshot.loss_scale],
    }
    texts: dict[str, Any] = as_json(form, arrays)
    assert not arrays, "sums over the steps of an epoch are numbers"
    return texts


def _run_from_json(run: RunForm) -> Snapshot:
    try:
        config = Config(**run.options)
    except (TypeError, ValueError) as error:
        raise refused(f"{RUN}.options", f"not the options of a run: {shown(error)}") from None
    first, scale = LossScale.of(config.dtype), run.loss_scale
    is_dynamic = None if first is None else first.is_dynamic
    fits = is_dynamic == (None if scale is None else scale.is_dynamic)
    if not fits or (scale is not None and not 0 < scale.scale <= LARGEST_SCALE):
        raise refused(f"{RUN}.loss_scale", f"{quoted(scale)}, which is not that of {config.dtype}")
    costs = run.measured.unit_costs
    if costs and not (costs.samples and len(costs.begins) == len(costs.costs)):
        raise refused(f"{RUN}.measured.unit_costs", "without samples, or without one row per unit")
    loss, divisor, samples, metrics = run.epoch
    return Snapshot(
        config,
        run.ranks,
        {name: value for name, value in vars(run.measured).items() if value is not None},
        run.span,
        run.state,
        run.skipped,
        Sums(loss, divisor, samples, {name: MetricSum(*share) for name, share in metrics.items()}),
        tuple(WorkerPosition(*row[:2], StepState(*row[2:])) for row in run.positions),
        run.changes,
        (),
        scale,
    )


# ---- the files


def _check_file(field: str, file: SavedFile, made: SavedFile) -> None:
    """Raises DamagedError for a file that nnmpi does not write; `made` is the layout that its
    ranges give."""
    for i, saved in enumerate(file.ranges):
        try:
            saved.place.check()
        except ValueError as error:
            raise refused(f"{field}.ranges[{i}].part", f"not a part: {shown(error)}") from None
        if sorted(saved.axes) != [*range(len(saved.shape))]:
            raise refused(
                f"{field}.ranges[{i}].axes",
                f"{saved.axes}, not an order of the axes of shape {saved.shape}",
            )
        if not saved.lo <= saved.hi <= saved.place.size:
            numbers = (
                f"{saved.lo:,} to {saved.hi:,}, not within the {saved.place.size:,} of the part"
            )
            raise refused(f"{field}.ranges[{i}]", numbers)
        if saved != made.ranges[i]:
            expected = f"{saved.values.dtype} at byte {saved.values.at:,}, or not its state, where"
            raise refused(f"{field}.ranges[{i}]", f"not {expected} such ranges and arrays have it")
    if file.name != made.name:
        raise refused(f"{field}.name", f"{shown(file.name)}, not {made.name}")
    if file.bytes != made.bytes:
        raise refused(f"{field}.bytes", f"{file.bytes:,}, but its ranges take {made.bytes:,}")
