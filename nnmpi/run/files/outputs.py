"""Checks, before a run, of the files that it writes."""

import os
from collections.abc import Callable
from contextlib import suppress
from itertools import combinations

from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.run.files.atomic import check_not_read_only, check_target
from nnmpi.run.files.folders import check_folder, is_folder, weights_of
from nnmpi.run.files.logs import check_log


def check_outputs(config: Config) -> None:
    """Raises ValueError if an output cannot be written, or if two outputs are one file."""
    save = config.save and weights_of(config.save)
    if config.save:
        check_folder(config.save) if is_folder(config.save) else check_target(config.save)
    if config.trace:
        check_target(config.trace, "write trace")
    if config.report:
        check_target(config.report, "write report")
    if config.log:
        check_not_read_only(config.log, "write log")
    outputs = {"save": save, "log": config.log, "trace": config.trace, "report": config.report}
    for (other, path), (option, name) in combinations(outputs.items(), 2):
        if path and name and os.path.abspath(path) == os.path.abspath(name):
            raise ValueError(
                f"{option} {shown(name)} is also the file of {other}; name another file"
            )
    _refuse_other_kinds(save, "save", "a model", lambda head: head[8:9] == b"{")
    _refuse_other_kinds(config.trace, "write trace", "a trace", lambda head: head[:1] == b"{")
    _refuse_other_kinds(config.report, "write report", "a page", lambda head: head[:1] == b"<")
    if config.log:
        check_log(config.log, config.append or config.resume or config.elastic)


def _refuse_other_kinds(
    path: str | None, what: str, kind: str, fits: Callable[[bytes], bool]
) -> None:
    """Raises ValueError if the file is there and is something else: a name may be mistaken."""
    if path and os.path.isfile(path):
        head = b""
        with suppress(OSError), open(path, "rb") as file:  # it may be replaced, if not read
            head = file.read(9)
        if head and not fits(head):
            raise ValueError(
                f"cannot {what} {shown(path)}: it is there already, and is not {kind}; remove it, "
                "or name another file"
            )


def version(path: str | None) -> tuple[int, int] | None:
    """What differs between versions of a file; None where there is no file."""
    try:
        found = os.stat(weights_of(path or ""))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def saved_since(before: tuple[int, int] | None, path: str | None) -> str:
    """What a run that is interrupted has saved, and what is in its file of --save."""
    now = version(path)
    if now is None:
        return "nothing was saved"
    if now == before:
        return f"nothing was saved, and {path} is as it was before the run"
    return f"the trained model was saved to {path}"
