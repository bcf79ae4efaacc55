"""The table of what may differ when a run goes on, from a checkpoint or from a snapshot."""

import platform
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays import blas, native
from nnmpi.comm import mpi_versions
from nnmpi.nn import BatchNorm1d, BatchNorm2d, Module
from nnmpi.options.config import Config, options
from nnmpi.options.quoting import shown
from nnmpi.version import __version__


class ResumeEffect(Enum):
    """The consequence of another value for a run that goes on."""

    SAME = "the same bits"
    EQUAL = "equal to one rank, but sums are added in another order"
    WARNED = "another result, of which a warning tells"
    REFUSED = "refused"


class ResumeRule(NamedTuple):
    """Options, or facts of a run, with what follows when one of them is another.

    beside      they count only where both runs have this option
    batch_norm  they are refused for a model with BatchNorm, which has sums over each micro-batch
    """

    names: tuple[str, ...]
    effect: ResumeEffect
    why: str
    beside: str = ""
    batch_norm: bool = False


FACTS = (
    *("the data set", "standardisation", "functions for options", "the loss", "the ranks"),
    "software",
)
"""Facts that are compared besides options."""

RESUME_RULES = (
    ResumeRule(
        ("model", "dropout", "context", "tokenizer"),
        ResumeEffect.REFUSED,
        "it would be another model",
    ),
    ResumeRule(
        ("data", "the data set", "standardise", "standardisation", "augment"),
        ResumeEffect.REFUSED,
        "samples would be others",
    ),
    ResumeRule(
        ("batch_size", "bucket_by_length", "seed"),
        ResumeEffect.REFUSED,
        "batches would be others, and so would be what is drawn at random",
    ),
    ResumeRule(
        ("optimizer", "momentum", "dtype", "functions for options"),
        ResumeEffect.REFUSED,
        "the optimizer state belongs to this rule and type",
    ),
    ResumeRule(
        ("slices",),
        ResumeEffect.REFUSED,
        "the tree over slices would have other bits",
        beside="reproducible",
    ),
    ResumeRule(
        ("lr", "lr_schedule", "weight_decay", "weight_decay_of", "clip_norm", "tf32", "the loss"),
        ResumeEffect.WARNED,
        "steps from here on are others",
    ),
    ResumeRule(
        ("epochs", "steps"),
        ResumeEffect.WARNED,
        "a schedule over all steps, as cosine, has other rates from here on",
    ),
    ResumeRule(
        ("micro_batches", "reproducible"),
        ResumeEffect.EQUAL,
        "gradients are sums over micro-batches, or slices",
        batch_norm=True,
    ),
    ResumeRule(
        (
            *("dp", "pp", "tp", "cp", "sequence_parallel", "layout", "order", "zero", "plan"),
            *("the ranks", "schedule", "virtual_stages", "cut", "recompute", "vertical_sync"),
            *("allreduce", "reduce_dtype", "bucket_mb", "overlap", "progress"),
            *("device", "convolution"),
            *("sync", "staleness", "servers", "slow_rank", "jitter", "elastic"),
        ),
        ResumeEffect.EQUAL,
        "who computes what does not change what is computed",
    ),
    ResumeRule(
        ("software",),
        ResumeEffect.EQUAL,
        "versions, BLAS and compiled kernels add in orders of their own",
    ),
    ResumeRule(
        (
            *("data_dir", "download", "load", "load_partial", "save", "log", "append", "trace"),
            *("verify", "check_copies", "json", "quiet", "sample_every", "prompt"),
            *("dry_run", "ranks", "checkpoint_dir", "save_every", "keep", "keep_best", "resume"),
            *("time_limit", "backup", "mtbf", "memory", "logger", "report"),
        ),
        ResumeEffect.SAME,
        "what is read and written, and when",
    ),
)
"""Every option is in one row, and so is every fact."""


def check_resumable(old_run: Mapping[str, Any], new_run: Mapping[str, Any], source: str) -> None:
    """Raises ValueError for the first value that may not be another than before, with both.

    `source`: what goes on, as "the snapshot"
    """
    for row, name, old, new in _changed(old_run, new_run):
        if row.effect is ResumeEffect.REFUSED:
            give = f"give {name} {shown(old)}" if name in _OPTIONS else "go on with the same"
            raise ValueError(
                f"{source} is of a run with {name} {shown(old)}, this one has {name} {shown(new)}: "
                f"{row.why}; {give}, or begin another run"
            )


def check_batch_norm(old_run: Config, new_run: Config, model: Module) -> None:
    """Raises ValueError if batches are cut in another way and the model has BatchNorm."""
    if not any(isinstance(m, BatchNorm1d | BatchNorm2d) for m in model.modules()):
        return
    for row, name, old, new in _changed(vars(old_run), vars(new_run)):
        if row.batch_norm:
            raise ValueError(
                f"the run had {name} {shown(old)}, and would go on with {name} {shown(new)}: "
                f"BatchNorm takes the mean over each part of a batch; give {name} {shown(old)}"
            )


def warnings(old_run: Mapping[str, Any], new_run: Mapping[str, Any]) -> list[str]:
    """A line for each value that changes what comes of the run."""
    return [
        f"{name} is {shown(new)}, and was {shown(old)} until here: {row.why}"
        for row, name, old, new in _changed(old_run, new_run)
        if row.effect is ResumeEffect.WARNED
    ]


def _changed(
    old_run: Mapping[str, Any], new_run: Mapping[str, Any]
) -> Iterator[tuple[ResumeRule, str, Any, Any]]:
    """Each row with a value that is another now, the name, and both values."""
    for row in RESUME_RULES:
        for name in row.names:
            if row.beside and not (old_run[row.beside] and new_run[row.beside]):
                continue
            if name in old_run and name in new_run and old_run[name] != new_run[name]:
                yield row, name, old_run[name], new_run[name]


_OPTIONS = frozenset(option.name for option in options())


# ---- The versions of what computes: others may round otherwise.


def versions() -> dict[str, str]:
    """The versions of nnmpi, Python and the libraries."""
    return {
        "nnmpi": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        **mpi_versions(),
    }


def versions_and_kernels() -> dict[str, str]:
    """The versions of the libraries, and the targets of BLAS and the compiled kernels."""
    return {**versions(), "blas": blas.core(), "native": native.INSTRUCTIONS}
