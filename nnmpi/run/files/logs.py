"""Logs: files of events, one JSON object a line, of a run or of several."""

import errno
import hashlib
import mmap
import os
from typing import IO, NamedTuple

from nnmpi.options.quoting import shown
from nnmpi.run.files.atomic import lock

FIRST = b'{"event": '
"""How every log begins."""

DRY = FIRST + b'"dry-run"'
"""How that of a dry run begins, which loses nothing when it is replaced."""

RUN = FIRST + b'"start"'
"""How the first line of a run begins."""

LINE = 1 << 16  # bytes before a mark that are compared

REASONS = {
    errno.EAGAIN: "another run writes to it; name another file",
    errno.ENXIO: "it is a pipe that nobody reads; name another file",
    errno.EEXIST: "it is there already, and is no log of nnmpi; name another file",
    errno.ENOTEMPTY: "it has a run already; name another file, or add to this one with --append",
}


class LogMark(NamedTuple):
    """A length of a log, and the SHA-256 of what is right before it."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: str, size: int) -> "LogMark":
        """Of the first `size` bytes of a file."""
        with open(path, "rb") as file:
            file.seek(max(0, size - LINE))
            return cls(size, hashlib.sha256(file.read(min(size, LINE))).hexdigest())


def check_log(log: str, appends: bool) -> None:
    """Raises ValueError if the file is no log, or has a run and is not to be added to."""
    try:
        if os.path.isfile(log):
            _check_content(log, appends, None)
    except OSError as error:
        raise _refusal(log, error) from None


def opened_log(log: str, appends: bool, mark: LogMark | None = None) -> IO[str]:
    """The log, to write behind what it has, if no other run writes to it.

    With the mark of a checkpoint, the log of its run is cut to what it had then.
    """

    def at_once(path: str, flags: int) -> int:
        """A pipe that nobody reads is an error, ENXIO; without the flag, open would wait."""
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
    """The bytes to keep: whole lines of runs. Raises OSError for what a run may not write to."""
    with open(log, "rb") as file:
        head = file.read(len(DRY))
        if head[: len(FIRST)] != FIRST[: len(head)]:
            raise OSError(errno.EEXIST, log)
        if not head or head == DRY:
            return 0
        if mark and _is_of_run(log, mark):
            return mark.size
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            whole = content.rfind(b"\n") + 1  # a run that was killed may have cut off its last line
        if whole and not appends:
            raise OSError(errno.ENOTEMPTY, log)
        return whole


def _is_of_run(log: str, mark: LogMark) -> bool:
    """Whether the mark is of this log, and no other run was added behind it."""
    if os.path.getsize(log) < mark.size or LogMark.of(log, mark.size) != mark:
        return False
    with open(log, "rb") as file:
        file.seek(mark.size)
        return not any(line.startswith(RUN) for line in file)


def _refusal(log: str, error: OSError) -> ValueError:
    reason = REASONS.get(error.errno or 0, f"{error.strerror}; name another file")
    return ValueError(f"cannot write log {shown(log)}: {reason}")
