"""Compares options and facts of a run with those of the run that resumes it."""

import platform
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from nnmpi.comm import mpi_versions
from nnmpi.nn import BatchNorm1d, BatchNorm2d, Module
from nnmpi.options import resume_rules as rules
from nnmpi.options.config import Config, options
from nnmpi.options.quoting import shown
from nnmpi.options.resume_rules import ResumeEffect, ResumeRule
from nnmpi.version import __version__

RULES: dict[str, ResumeRule] = {
    **{option.name: option.metadata["resume"] for option in options()},
    **dict.fromkeys(("the data set", "standardisation"), rules.OTHER_SAMPLES),
    "functions for options": rules.OTHER_STATE,
    "the loss": rules.OTHER_STEPS,
    "the ranks": rules.OTHER_RANKS,
    "software": ResumeRule(
        ResumeEffect.EQUAL, "another version, BLAS or compiled kernel may add in another order"
    ),
}
"""For each option and each other fact of a run, the rule if it differs in the resumed run."""


class OtherRunError(ValueError):
    """Raised for a checkpoint of a run with other options or data."""


def check_resumable(old_run: Mapping[str, Any], new_run: Mapping[str, Any], source: str) -> None:
    """Raises ValueError if an option or a fact (such as the data set) differs that the table RULES
    does not allow to change; `source` names what is resumed, such as "the snapshot"."""
    for rule, name, old, new in changed_options(old_run, new_run):
        if rule.effect is ResumeEffect.REFUSED:
            give = f"give {name} {shown(old)}" if name in _OPTIONS else "use the same"
            # a rule that always applies: all checkpoints of a directory have the same value
            error = ValueError if rule.beside else OtherRunError
            raise error(
                f"{source} is of a run with {name} {shown(old)}, this one has {name} {shown(new)}: "
                f"{rule.why}; {give}, or start a new run"
            )


def check_batch_norm(old_run: Config, new_run: Config, model: Module) -> None:
    """Raises ValueError if the model has BatchNorm and the new run divides batches differently:
    BatchNorm takes means over the samples that are computed together."""
    if not any(isinstance(m, BatchNorm1d | BatchNorm2d) for m in model.modules()):
        return
    for rule, name, old, new in changed_options(vars(old_run), vars(new_run)):
        if rule.batch_norm:
            raise ValueError(
                f"the run had {name} {shown(old)}, and would resume with {name} {shown(new)}: "
                f"BatchNorm takes the mean over each part of a batch; give {name} {shown(old)}"
            )


def changed_options(
    old_run: Mapping[str, Any], new_run: Mapping[str, Any]
) -> Iterator[tuple[ResumeRule, str, Any, Any]]:
    """Yields (rule, name, old value, new value) for each option or fact that differs between two
    runs and has a rule in RULES, which says whether that is an error, a warning or nothing."""
    for name, rule in RULES.items():
        if rule.beside and old_run[rule.beside] != new_run[rule.beside]:
            continue
        if name in old_run and name in new_run and old_run[name] != new_run[name]:
            yield rule, name, old_run[name], new_run[name]


_OPTIONS = frozenset(option.name for option in options())


# ---- versions of the software that computes: with others, results may round differently


def versions() -> dict[str, str]:
    """Returns the versions of nnmpi, Python and the libraries, by name."""
    return {
        "nnmpi": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        **mpi_versions(),
    }
