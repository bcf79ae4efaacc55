"""The command `python -m nnmpi.checkpoint`: lists, verifies and exports checkpoints; without MPI.

Exit status: 0 success, 1 a checkpoint is damaged, 2 unusable arguments, 130 stopped by Ctrl-C.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nnmpi.addons.checkpoints.export import export
from nnmpi.addons.checkpoints.keep import folder_of, folders
from nnmpi.addons.checkpoints.manifest import Manifest, read_manifest
from nnmpi.addons.checkpoints.read import BlockReader, StoredCheckpoint, newest_of
from nnmpi.addons.checkpoints.schema import DamagedError
from nnmpi.options import cli
from nnmpi.options.amounts import amount, plural
from nnmpi.options.quoting import shown
from nnmpi.options.tables import columns
from nnmpi.parallel.mesh import CUT_BY_AXIS

Checkpoint = dict[str, Any]
"""A checkpoint as the JSON object that --json prints."""

HEADS = ("step", "epoch", "loss", "layout", "size", "age", "state")


class CommandOutput(NamedTuple):
    """The output of a subcommand, as JSON values and as text, and its exit status."""

    values: list[Checkpoint]
    text: str
    status: int = 0


def parser() -> cli.Parser:
    """The parser; each subcommand sets `run`, which returns a CommandOutput."""
    about = "List and verify checkpoints, and export one as a model, without MPI."
    p = cli.Parser("nnmpi.checkpoint", description=about)
    kinds = p.add_subparsers(title="commands", dest="kind", required=True, metavar="COMMAND")

    def add(name: str, text: str, run: Callable[[argparse.Namespace], CommandOutput]) -> Any:
        sub = kinds.add_parser(name, help=text)
        sub.add_argument("directory", metavar="DIR", help="the directory of checkpoints")
        sub.add_argument("--json", action="store_true", help="print JSON, not text")
        sub.set_defaults(run=run)
        return sub

    add("list", "list checkpoints, the newest first", listed)
    sub = add("verify", "read all data, and compare it with its digests", verified)
    sub.add_argument("step", metavar="STEP", nargs="?", type=int, help="default: all of them")
    sub = add("export", "write the model to one safetensors file, with PyTorch's names", exported)
    out = "the file to write, or FOLDER/ for GPT-2's format"
    sub.add_argument("out", metavar="OUT", help=out)
    sub.add_argument("--step", type=int, help="default: the newest complete one")
    text = "also write the state of the optimizer, beside the model"
    sub.add_argument("--optimizer", action="store_true", help=text)
    return p


def command(options: argparse.Namespace) -> int:
    """Runs a subcommand, prints its output as text or JSON, and returns the exit status."""
    output = options.run(options)
    print(json.dumps(output.values) if options.json else output.text, flush=True)
    return int(output.status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return cli.main(parser(), command, arguments, "take a machine with more of it")


def listed(options: argparse.Namespace) -> CommandOutput:
    """The output of `list`: a line for each checkpoint; only manifests are read."""
    by_step = _folders(options.directory)
    values = [_facts(step, folder) for step, folder in by_step.items()]
    if not values:
        return CommandOutput([], f"no checkpoints in {shown(options.directory)}")
    return CommandOutput(values, columns([HEADS, *map(_cells, values)]))


def verified(options: argparse.Namespace) -> CommandOutput:
    """The output of `verify`, a line for each checkpoint: reads all blocks of all, or of that at
    `step`."""
    by_step = _folders(options.directory)
    if options.step is not None:
        by_step = {options.step: _chosen(options)}
    if not by_step:
        raise ValueError(f"there are no checkpoints in {shown(options.directory)}")
    values = [
        _facts(step, folder, lambda *manifest_and_folder: BlockReader(*manifest_and_folder).check())
        for step, folder in by_step.items()
    ]
    lines = [
        f"step {value['step']}: {value['problem'] or 'whole, ' + amount(value['bytes'])}"
        for value in values
    ]
    damaged = any(value["problem"] for value in values)
    return CommandOutput(values, "\n".join(lines), int(damaged))


def exported(options: argparse.Namespace) -> CommandOutput:
    """Carries out the subcommand `export`: writes a checkpoint's model to a file or folder. Returns
    the output to print: the step, the files, and newer checkpoints that were passed over."""
    newest = None
    if options.step is not None:
        folder = _chosen(options)
    elif newest := newest_of(Path(options.directory)):
        folder = newest.folder
    else:
        raise ValueError(f"there are no checkpoints in {shown(options.directory)}")
    try:
        checkpoint = newest or StoredCheckpoint(folder, read_manifest(folder))
        files = export(checkpoint, options.out, options.optimizer)
    except DamagedError as error:
        remedy = "choose another step with --step"
        raise ValueError(f"cannot export {shown(folder)}: {error}; {remedy}") from None
    text = f"step {checkpoint.step} to {' and '.join(map(shown, files))}"
    passed_over = [f"{line}\n" for line in checkpoint.passed_over]
    value = {"step": checkpoint.step, "files": files, "passed_over": [*checkpoint.passed_over]}
    return CommandOutput([value], "".join([*passed_over, text]))


def _folders(directory: str) -> dict[int, Path]:
    try:
        return folders(Path(directory))
    except OSError as error:
        wrong = f"cannot read {shown(directory)}: {error.strerror}"
        raise ValueError(f"{wrong}; name a directory that was given to --checkpoint-dir") from None


def _chosen(options: argparse.Namespace) -> Path:
    """Returns the folder of `options.step`'s checkpoint, or raises ValueError."""
    by_step = _folders(options.directory)
    if options.step not in by_step:
        name = folder_of(Path(options.directory), options.step).name
        known = ", ".join(map(str, by_step)) or "none"
        raise ValueError(
            f"there is no {name} in {shown(options.directory)}; the steps there are {known}"
        )
    return by_step[options.step]


def _facts(
    step: int, folder: Path, check: Callable[[Path, Manifest], None] = lambda *_: None
) -> Checkpoint:
    """Returns a checkpoint as a JSON object: step, epoch, loss, ranks, size and so on. Its
    `problem` is not empty if the manifest is damaged, or if check(folder, manifest) raises
    DamagedError."""
    try:
        manifest = read_manifest(folder)
        check(folder, manifest)
    except DamagedError as error:
        return {"step": step, "folder": str(folder), "problem": str(error)}
    run, about = manifest.snapshot, manifest.about()
    loss = about.metrics.get("loss")
    sizes = {axis: n for axis in CUT_BY_AXIS if (n := getattr(run.config, axis)) > 1}
    return {
        "step": step,
        "folder": str(folder),
        "epoch": run.state.epoch,
        "loss": run.epoch.mean_loss if run.epoch.samples else loss,
        "ranks": run.ranks,
        "layout": {"pp": run.config.pp, **sizes, "zero": run.config.zero},
        "bytes": manifest.size,
        "time": manifest.time,
        "complete": about.complete,
        "versions": dict(manifest.versions),
        "problem": "",
    }


def _cells(value: Checkpoint) -> list[str]:
    if value["problem"]:
        return [str(value["step"]), "", "", "", "", "", value["problem"]]
    sizes = [f"{axis} {n}" for axis, n in value["layout"].items() if n > (axis != "zero")]
    return [
        str(value["step"]),
        str(value["epoch"]),
        "" if value["loss"] is None else f"{value['loss']:.4f}",
        " ".join([plural(value["ranks"], "rank"), *sizes]),
        amount(value["bytes"]),
        _age(time.time() - value["time"]),
        "complete" if value["complete"] else "whole",
    ]


def _age(seconds: float) -> str:
    """A duration in its largest unit, with two digits: 2 d, 15 h, 40 min, 59 s."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
