"""The table of what may differ between a run and the run that continues it, from a checkpoint or a
snapshot."""

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
    """The effect on a resumed run if a value differs."""

    SAME = "the same bits"
    EQUAL = "equal to one rank, but sums are added in another order"
    WARNED = "another result, with a warning"
    REFUSED = "refused"


class ResumeRule(NamedTuple):
    """Options, or facts of a run, with the effect if one of them differs in the run that resumes.

    beside      an option that must not differ for the rule to apply
    batch_norm  refused for models with BatchNorm, whose statistics are those of each micro-batch
    """

    names: tuple[str, ...]
    effect: ResumeEffect
    why: str
    beside: str = ""
    batch_norm: bool = False


RESUME_RULES = (
    ResumeRule(
        ("model", "dropout", "context", "tokenizer"),
        ResumeEffect.REFUSED,
        "it would be another model",
    ),
    ResumeRule(
        ("data", "the data set", "standardise", "standardisation", "augment"),
        ResumeEffect.REFUSED,
        "the samples would differ",
    ),
    ResumeRule(
        ("batch_size", "bucket_by_length", "seed"),
        ResumeEffect.REFUSED,
        "batches and random numbers would differ",
    ),
    ResumeRule(
        ("optimizer", "momentum", "dtype", "functions for options"),
        ResumeEffect.REFUSED,
        "the saved state of the optimizer fits only the rule and type of that run",
    ),
    ResumeRule(
        ("slices",),
        ResumeEffect.REFUSED,
        "sums over the tree of slices would have other bits",
        beside="reproducible",
    ),
    ResumeRule(
        (
            *("lr", "lr_schedule", "weight_decay", "weight_decay_of", "clip_norm", "tf32"),
            *("the loss", "sync", "staleness"),
        ),
        ResumeEffect.WARNED,
        "the steps from here on differ",
    ),
    ResumeRule(
        ("compress",),
        ResumeEffect.WARNED,
        "other parts of gradients are sent from here on",
    ),
    ResumeRule(
        (
            *("every", "fragments", "apply_after", "graph"),
            *("outer", "outer_lr", "outer_momentum", "outer_dtype"),
        ),
        ResumeEffect.WARNED,
        "replicas differ by other steps from here on",
        beside="sync",
    ),
    ResumeRule(
        ("epochs", "steps"),
        ResumeEffect.WARNED,
        "a schedule over all steps, such as cosine, has other rates from here on",
    ),
    ResumeRule(
        ("micro_batches", "reproducible"),
        ResumeEffect.EQUAL,
        "gradients are sums over micro-batches or slices",
        batch_norm=True,
    ),
    ResumeRule(
        (
            *("dp", "pp", "tp", "cp", "sequence_parallel", "layout", "order", "zero", "plan"),
            *("the ranks", "schedule", "virtual_stages", "cut", "recompute", "vertical_sync"),
            *("allreduce", "reduce_dtype", "bucket_mb", "overlap", "progress"),
            *("device", "convolution"),
            *("servers", "slow_rank", "jitter", "elastic"),
        ),
        ResumeEffect.EQUAL,
        "which rank computes something does not change its result",
    ),
    ResumeRule(
        ("software",),
        ResumeEffect.EQUAL,
        "another version, BLAS or compiled kernel may add in another order",
    ),
    ResumeRule(
        (
            *("data_dir", "download", "load", "load_partial", "save", "log", "append", "trace"),
            *("compile", "verify", "check_copies", "json", "quiet", "log_every"),
            *("evaluate_every", "sample_every", "prompt"),
            *("dry_run", "ranks", "checkpoint_dir", "save_every", "keep", "keep_best", "resume"),
            *("time_limit", "backup", "mtbf", "memory", "logger", "report"),
        ),
        ResumeEffect.SAME,
        "only what is read and written, and when",
    ),
)
"""The rules; every option, and every fact, is in exactly one of them."""


def check_resumable(old_run: Mapping[str, Any], new_run: Mapping[str, Any], source: str) -> None:
    """Raises ValueError, with both values, for the first value that must not differ but does.

    `source` names what is resumed, such as "the snapshot".
    """
    for row, name, old, new in _changed(old_run, new_run):
        if row.effect is ResumeEffect.REFUSED:
            give = f"give {name} {shown(old)}" if name in _OPTIONS else "use the same"
            raise ValueError(
                f"{source} is of a run with {name} {shown(old)}, this one has {name} {shown(new)}: "
                f"{row.why}; {give}, or start a new run"
            )


def check_batch_norm(old_run: Config, new_run: Config, model: Module) -> None:
    """Raises ValueError if the new run divides batches in another way and the model has
    BatchNorm."""
    if not any(isinstance(m, BatchNorm1d | BatchNorm2d) for m in model.modules()):
        return
    for row, name, old, new in _changed(vars(old_run), vars(new_run)):
        if row.batch_norm:
            raise ValueError(
                f"the run had {name} {shown(old)}, and would resume with {name} {shown(new)}: "
                f"BatchNorm takes the mean over each part of a batch; give {name} {shown(old)}"
            )


def warnings(old_run: Mapping[str, Any], new_run: Mapping[str, Any]) -> list[str]:
    """A line of text for each difference that changes the result of the run."""
    return [
        f"{name} is {shown(new)}, and was {shown(old)} before: {row.why}"
        for row, name, old, new in _changed(old_run, new_run)
        if row.effect is ResumeEffect.WARNED
    ]


def _changed(
    old_run: Mapping[str, Any], new_run: Mapping[str, Any]
) -> Iterator[tuple[ResumeRule, str, Any, Any]]:
    """Yields each rule with a value that differs: the rule, its name, the old value and the new
    value."""
    for row in RESUME_RULES:
        for name in row.names:
            if row.beside and old_run[row.beside] != new_run[row.beside]:
                continue
            if name in old_run and name in new_run and old_run[name] != new_run[name]:
                yield row, name, old_run[name], new_run[name]


_OPTIONS = frozenset(option.name for option in options())


# ---- versions of the software that computes: with others, results may round differently


def versions() -> dict[str, str]:
    """The versions of nnmpi, Python and the libraries."""
    return {
        "nnmpi": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        **mpi_versions(),
    }


def versions_and_kernels() -> dict[str, str]:
    """The versions of the libraries, and the CPU targets of BLAS and of the compiled kernels."""
    return {**versions(), "blas": blas.core(), "native": native.INSTRUCTIONS}
