"""The manifest of a checkpoint: the facts about the run, and the ranges of arrays in each file.

    {"sha256":"<digest of the value of manifest, from { to }>","manifest":{...}}

A change of any byte is detected, also in white space. Another version of the format is refused.

The state of training is a list of named arrays: `fc.weight`, its `fc.weight.momentum_buffer` and
`fc.weight.step` (the number of updates), buffers, the loss scale, and `fc.weight.momentum_buffer@2`
if replica 2 has its own. The manifest has the name, type, shape and memory order of each array, and
the ranges of arrays in each file, in file order, with a SHA-256 for each block of 1 MB.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nnmpi.addons.checkpoints.forms import (
    ManifestForm,
    RunFacts,
    RunForm,
)
from nnmpi.addons.checkpoints.manifest_files import files_from_json, files_to_json
from nnmpi.addons.checkpoints.rank_file import RankFile, is_about
from nnmpi.addons.checkpoints.schema import NAME, DamagedError, as_json, checked, from_json, refused
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.io.files.atomic import sync
from nnmpi.metrics import MetricSum, Sums
from nnmpi.optim.loss_scale import LOSS_SCALE
from nnmpi.optim.state import split
from nnmpi.options.amounts import plural
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import check_regular, parsed
from nnmpi.parallel.layout import mesh_of
from nnmpi.parallel.step.executor import StepState
from nnmpi.parallel.strategy import WorkerPosition
from nnmpi.version import __version__

T = TypeVar("T")

FORMAT = 2
"""The version of the format, also of the headers of files; other versions are not read."""

MOST_BYTES = 1 << 30  # bytes of a manifest: a checkpoint of 10 TB has 700 MB
HEAD, MIDDLE, TAIL = b'{"sha256":"', b'","manifest":', b"}\n"
DIGEST = 64  # characters
RUN, ABOUT = "manifest.run", "manifest.about"


class Outcome(NamedTuple):
    """The facts about a checkpoint that decide whether it is kept, or used to resume a run.

    metrics    results of the evaluation after which it was written; empty if there was none
    restored   the steps to which `Trainer.restore` had taken the run back, in order
    is_whole   whether all its files exist, with the right sizes
    """

    metrics: Mapping[str, float]
    restored: tuple[int, ...]
    is_whole: bool


class Manifest(NamedTuple):
    """The contents of a checkpoint, without the values of its arrays.

    files       the ranks' files, in rank order
    about_json  the RunFacts as JSON, by `as_json`; their arrays are in the first file
    versions    the versions of the software that computed it
    time        when it was written, in seconds since the epoch
    """

    snapshot: Snapshot
    files: tuple[RankFile, ...]
    about_json: Any
    versions: Mapping[str, str]
    time: float

    @property
    def step(self) -> int:
        """The number of steps that the run had made when the checkpoint was written."""
        return self.snapshot.state.step

    @property
    def size(self) -> int:
        """The bytes of all files together."""
        return sum(file.size for file in self.files)

    def about(self, arrays: Sequence[Any] | None = None) -> RunFacts:
        """Returns the RunFacts in the manifest, with `arrays` as the values of those facts that are
        arrays, or without it with descriptions of them; the values are in the first rank's file."""
        if arrays is None:
            arrays = [x for x in self.files[0].arrays if is_about(x)]
        fields = from_json(self.about_json, arrays, ABOUT)
        about: RunFacts = checked(fields, RunFacts, ABOUT)
        return about


def to_bytes(manifest: Manifest) -> bytes:
    """Returns the content of manifest.json."""
    content = {
        "format": FORMAT,
        "time": manifest.time,
        "versions": dict(manifest.versions),
        "run": _run_to_json(manifest.snapshot),
        "about": manifest.about_json,
        **files_to_json(manifest.files),
    }
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    return HEAD + hashlib.sha256(body).hexdigest().encode() + MIDDLE + body + TAIL


def parsed_by(read: Callable[[Any], T], content: bytes) -> T:
    """Checks a manifest against the SHA-256 in it, parses its JSON, and returns read(the parsed
    value). Raises DamagedError for a wrong SHA-256, another version of the format, or an error of
    `read`."""
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
                f"{NAME} has version {shown(version)} of the format, and nnmpi {__version__} reads "
                f"version {FORMAT}: go on with the nnmpi that wrote it, or start a new run"
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
    """Returns this content's manifest; raises DamagedError for an impossible one."""
    return parsed_by(_from_json, content)


def _from_json(value: Any) -> Manifest:
    form: ManifestForm = checked(value, ManifestForm, "manifest")
    files = files_from_json(form)
    snapshot = _run_from_json(checked(from_json(form.run, (), RUN), RunForm, RUN))
    manifest = Manifest(snapshot, files, form.about, form.versions, form.time)
    if snapshot.ranks != len(files):
        raise refused(f"{RUN}.ranks", f"{snapshot.ranks:,}, but there are {len(files):,} files")
    try:
        mesh_of(snapshot.config, snapshot.ranks)
    except ValueError:
        ranks = plural(snapshot.ranks, "rank")
        raise refused(f"{RUN}.options", f"not the options of a run on {ranks}") from None
    about = manifest.about()
    tensors, others = {*about.tensors.values()}, about.others
    arrays = {x.name for file in files for x in file.arrays if not is_about(x)}
    rest = arrays.difference(tensors, others, [LOSS_SCALE])
    unknown = (x for x in rest if split(x)[0] not in about.tensors)
    if not tensors <= {*about.tensors} & arrays or any(unknown):
        raise refused(f"{ABOUT}.tensors", "not the tensors that the files have")
    if len({*about.buffers}) < len(about.buffers) or not {*about.buffers} <= {*about.tensors}:
        raise refused(f"{ABOUT}.buffers", "not tensors that the files have")
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes manifest.json to a folder, which must have none yet, and syncs both to disk. The write
    is not atomic: the caller gives the folder the name of a checkpoint afterwards."""
    with (folder / NAME).open("xb") as file:
        file.write(to_bytes(manifest))
        file.flush()
        os.fsync(file.fileno())
    sync(folder)


def read_manifest(folder: Path) -> Manifest:
    """Returns the manifest of a checkpoint; only the manifest is read. Raises DamagedError if it is
    damaged, or if a file of the checkpoint is missing or of another size."""
    manifest = from_bytes(_content(folder))
    for file in manifest.files:
        if (size := _size_of(folder, file.name)) != file.size:
            arrays = shown(file.arrays_in(size if size < file.size else 0, file.size))
            raise DamagedError(f"{file.name} has {size:,} bytes, not {file.size:,}, for {arrays}")
    _check_step(folder, manifest.step)
    return manifest


def read_outcome(folder: Path) -> Outcome:
    """Returns the Outcome in the manifest of a checkpoint; raises DamagedError for a damaged
    manifest, another version of the format, or another step than the folder's. Other fields are not
    checked, which would take ten times as long."""

    def outcome(value: Any) -> Outcome:
        _check_step(folder, int(from_json(value["run"], (), RUN)["state"][0]))
        about, is_whole = value["about"], False
        with suppress(DamagedError):  # a file is missing
            is_whole = all(_size_of(folder, f["name"]) == f["bytes"] for f in value["files"])
        restored = from_json(about["restored"], (), ABOUT)
        return Outcome(from_json(about["metrics"], (), ABOUT), tuple(restored), is_whole)

    return parsed_by(outcome, _content(folder))


def _check_step(folder: Path, step: int) -> None:
    number = re.search(r"step-(\d+)", folder.name)
    if number and int(number[1]) != step:
        raise refused(f"{RUN}.state.step", f"{step:,}, but the folder is {folder.name}")


def _content(folder: Path) -> bytes:
    with _readable():
        check_regular(folder / NAME, MOST_BYTES)
        return (folder / NAME).read_bytes()


def _size_of(folder: Path, name: str) -> int:
    with _readable():
        return (folder / name).stat().st_size


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
    }
    texts: dict[str, Any] = as_json(form, arrays)
    assert not arrays, "sums over the steps of an epoch are numbers"
    return texts


def _run_from_json(run: RunForm) -> Snapshot:
    try:
        config = Config(**run.options)
    except (TypeError, ValueError) as error:
        raise refused(f"{RUN}.options", f"not the options of a run: {shown(error)}") from None
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
    )
