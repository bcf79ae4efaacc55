"""Checks, before a run, of the files that it writes."""

import os
from collections.abc import Mapping

from nnmpi.config import Config
from nnmpi.run import saving


def check_outputs(config: Config) -> None:
    """Raises ValueError if --save or --trace cannot be written, or if an output is another file.

    A model may be saved to the file that it was loaded from.
    """
    is_file = config.data.startswith("npz:") or config.data.endswith(".npz")
    data = os.path.expanduser(config.data.removeprefix("npz:")) if is_file else None
    if config.save:
        saving.check_target(config.save)
    check_differs("save", config.save, {"data": data})
    if config.trace:
        saving.check_target(config.trace, "write trace")
    others = {"data": data, "save": config.save, "load": config.load}
    check_differs("log", config.log, others)
    check_differs("trace", config.trace, {**others, "log": config.log})


def check_differs(option: str, path: str | None, others: Mapping[str, str | None]) -> None:
    """Raises ValueError if `path` is one of the other files, which are given by option."""
    for other, name in others.items():
        if path and name and _is_same_file(path, name):
            raise ValueError(f"{option} {path} is also the file of {other}; name another file")


def _is_same_file(a: str, b: str) -> bool:
    if os.path.exists(a) and os.path.exists(b):
        return os.path.samefile(a, b)
    return os.path.realpath(a) == os.path.realpath(b)
