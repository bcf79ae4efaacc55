"""Checks the files that a run writes before it begins, and opens its log."""

import errno
import hashlib
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import combinations
from typing import IO, NamedTuple

from nnmpi.io.files.atomic import check_not_read_only, check_target, lock
from nnmpi.io.files.model_files import model_file
from nnmpi.options.config import Config
from nnmpi.options.features import OPTIONS, OutputFile
from nnmpi.options.quoting import shown

# ---- logs: one JSON object a line, of a run or of several


FIRST = b'{"event": '
"""The first bytes of every log."""

DRY = FIRST + b'"dry-run"'
"""The first bytes of the log of a dry run, which may be replaced."""

RUN = FIRST + b'"start"'
"""The first bytes of the line with which a run begins."""

LINE = 1 << 16  # bytes before a LogMark that its digest covers

REASONS = {
    errno.EAGAIN: "another run writes to it; name another file",
    errno.ENXIO: "it is a pipe that no process reads; name another file",
    errno.EEXIST: "it exists, and is not a log of nnmpi; name another file",
    errno.ENOTEMPTY: "it has a run already; name another file, or add to this one with --append",
}


class LogMark(NamedTuple):
    """How long a log file was when a checkpoint was written: a run that resumes from it truncates
    the log there, and repeats the later steps.

    size     bytes of the log before the position
    sha256   the hash of the last 64 KiB (LINE) of these bytes, by which a resumed run checks that
             the file is still the same log
    """

    size: int
    sha256: str

    @classmethod
    def of(cls, path: str, size: int) -> "LogMark":
        """Returns the LogMark for the position after the first `size` bytes of the log file `path`.
        It reads up to LINE bytes before the position, for their hash."""
        with open(path, "rb") as file:
            file.seek(max(0, size - LINE))
            return cls(size, hashlib.sha256(file.read(min(size, LINE))).hexdigest())


def check_log(log: str, appends: bool) -> None:
    """Raises ValueError if the file is not a log, or if it has a run and `appends` is False."""
    try:
        if os.path.isfile(log):
            _check_content(log, appends, None)
    except OSError as error:
        raise _refusal(log, error) from None


def opened_log(log: str, appends: bool, mark: LogMark | None = None) -> IO[str]:
    """Opens a log for appending; raises ValueError if another run writes to it, or if it has the
    events of another run and `appends` is False. If the file is still the log of `mark`, from the
    checkpoint of a run that resumes, it is truncated to that length."""

    def at_once(path: str, flags: int) -> int:
        """Opens without blocking: a pipe without a reader raises ENXIO."""
        file = os.open(path, flags | os.O_NONBLOCK, 0o666)
        os.set_blocking(file, True)
        return file

    try:
        file = open(log, "a", encoding="utf-8", opener=at_once)  # noqa: SIM115
        if os.path.isfile(log):
            try:
                lock(file)
                file.truncate(_check_content(log, appends, mark))
            except BaseException:
                file.close()
                raise
    except OSError as error:
        raise _refusal(log, error) from None
    return file


def _check_content(log: str, appends: bool, mark: LogMark | None) -> int:
    """Returns the number of bytes to which a log is truncated before a run appends to it: that of
    `mark`, if it fits, or the length without an incomplete last line.

    Raises OSError if it is no log, or it has another run and `appends` is False.
    """
    with open(log, "rb") as file:
        head = file.read(len(DRY))
        if head[: len(FIRST)] != FIRST[: len(head)]:
            raise OSError(errno.EEXIST, log)
        if not head or head == DRY:
            return 0
        if mark and is_of_run(log, mark):
            return mark.size
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            size = content.rfind(b"\n") + 1  # a run that was killed may have cut off its last line
        if size and not appends:
            raise OSError(errno.ENOTEMPTY, log)
        return size


def is_of_run(log: str, mark: LogMark) -> bool:
    """True if a log still is of this LogMark's run: as long, the same bytes, no run appended."""
    if os.path.getsize(log) < mark.size or LogMark.of(log, mark.size) != mark:
        return False
    with open(log, "rb") as file:
        file.seek(mark.size)
        return not any(line.startswith(RUN) for line in file)


def _refusal(log: str, error: OSError) -> ValueError:
    reason = REASONS.get(error.errno or 0, f"{error.strerror}; name another file")
    return ValueError(f"cannot write log {shown(log)}: {reason}")


# ---- outputs


_APPENDING = ("append", *(name for part in OPTIONS.rows() for name in part.appends))
"""The options of runs that may write to a log with the events of another run. A run that continues
from a checkpoint is checked once more when it opens its log, by the LogMark in the checkpoint."""


OUTPUTS = [file for part in OPTIONS.rows() for file in part.outputs]
"""The files that a run may write besides log and model."""


def outputs_of(config: Config) -> dict[OutputFile, str]:
    """Returns those of OUTPUTS that a run writes, with their paths."""
    return {file: path for file in OUTPUTS if (path := getattr(config, file.option))}


def check_outputs(config: Config) -> None:
    """Raises ValueError if an output cannot be written, or if two outputs are the same file."""
    save = None
    if config.save:
        target = model_file(config.save)
        target.check()
        save = target.weights
    if config.log:
        check_not_read_only(config.log, "write log")
    files = outputs_of(config)
    for file, path in files.items():
        check_target(path, f"write {file.option}")
    outputs = {"save": save, "log": config.log, **{o.option: path for o, path in files.items()}}
    for (other, first), (option, name) in combinations(outputs.items(), 2):
        if first and name and os.path.abspath(first) == os.path.abspath(name):
            raise ValueError(
                f"{option} {shown(name)} is also the file of {other}; name another file"
            )
    _refuse_other_kinds(save, "save", "a model", lambda head: head[8:9] == b"{")
    for file, path in files.items():
        _refuse_other_kinds(path, f"write {file.option}", file.kind, file.fits)
    if config.log:
        check_log(config.log, any(getattr(config, option) for option in _APPENDING))


def _refuse_other_kinds(
    path: str | None, action: str, kind: str, fits: Callable[[bytes], bool]
) -> None:
    """Raises ValueError if the file exists and is of another kind: its name may be a mistake."""
    if path and os.path.isfile(path):
        head = b""
        with suppress(OSError), open(path, "rb") as file:  # unreadable: it can still be replaced
            head = file.read(9)
        if head and not fits(head):
            raise ValueError(
                f"cannot {action} {shown(path)}: it exists, and is not {kind}; remove it, or name "
                "another file"
            )


def version(path: str | None) -> tuple[int, int] | None:
    """Returns (inode, modification time) of a saved model, or None."""
    try:
        status = os.stat(model_file(path or "").weights)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def saved_since(before: tuple[int, int] | None, path: str | None) -> str:
    """Returns a message that tells if an interrupted run has saved its model; `before` is the
    `version` of the file at the start of the run."""
    now = version(path)
    if now is None:
        return "nothing was saved"
    if now == before:
        return f"nothing was saved, and {path} is as it was before the run"
    return f"the trained model was saved to {path}"
