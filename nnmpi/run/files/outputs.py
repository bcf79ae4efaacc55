"""Checks, before a run, of the files that it writes."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from nnmpi.config import Config
from nnmpi.quoting import shown
from nnmpi.run.files.atomic import check_not_read_only, check_target
from nnmpi.run.files.folders import check_folder, is_folder, weights_of
from nnmpi.run.files.logs import check_log


def check_outputs(config: Config) -> None:
    """Raises ValueError if an output cannot be written, or if it is another file of the run.

    A model may be saved to the file that it was loaded from.
    """
    is_file = config.data.startswith("npz:") or config.data.endswith(".npz")
    data = os.path.expanduser(config.data.removeprefix("npz:")) if is_file else None
    save, load = (path and weights_of(path) for path in (config.save, config.load))
    if config.save:
        check_folder(config.save) if is_folder(config.save) else check_target(config.save)
    check_differs("save", save, {"data": data})
    if config.trace:
        check_target(config.trace, "write trace")
    if config.report:
        check_target(config.report, "write report")
    if config.log:
        check_not_read_only(config.log, "write log")
    others = {"data": data, "save": save, "load": load}
    check_differs("log", config.log, others)
    others["log"] = config.log
    check_differs("trace", config.trace, others)
    check_differs("report", config.report, {**others, "trace": config.trace})
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


def check_differs(option: str, path: str | None, others: Mapping[str, str | None]) -> None:
    """Raises ValueError if `path` is one of the other files, which are given by option."""
    for other, name in others.items():
        if path and name and _is_same_file(path, name):
            raise ValueError(
                f"{option} {shown(path)} is also the file of {other}; name another file"
            )


def _is_same_file(a: str, b: str) -> bool:
    if os.path.exists(a) and os.path.exists(b):
        return os.path.samefile(a, b)
    return os.path.realpath(a) == os.path.realpath(b)
