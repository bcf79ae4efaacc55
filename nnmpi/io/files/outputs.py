"""Files that a run writes, checked before it begins; and its log."""

import errno
import hashlib
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import combinations
from typing import IO, NamedTuple

from nnmpi.io.files.atomic import check_not_read_only, check_target, lock
from nnmpi.io.files.folders import check_folder, is_folder, weights_of
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown

# ---- logs: one JSON object a line, of a run or of several


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
        """The mark behind the first `size` bytes of a file."""
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
            size = content.rfind(b"\n") + 1  # a run that was killed may have cut off its last line
        if size and not appends:
            raise OSError(errno.ENOTEMPTY, log)
        return size


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


# ---- outputs


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
    path: str | None, action: str, kind: str, fits: Callable[[bytes], bool]
) -> None:
    """Raises ValueError if the file is there and is something else: a name may be mistaken."""
    if path and os.path.isfile(path):
        head = b""
        with suppress(OSError), open(path, "rb") as file:  # it may be replaced, if not read
            head = file.read(9)
        if head and not fits(head):
            raise ValueError(
                f"cannot {action} {shown(path)}: it is there already, and is not {kind}; remove "
                "it, or name another file"
            )


def version(path: str | None) -> tuple[int, int] | None:
    """The inode and the time of change, by which versions of a file differ; None without a file."""
    try:
        status = os.stat(weights_of(path or ""))
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def saved_since(before: tuple[int, int] | None, path: str | None) -> str:
    """A message on what an interrupted run has saved, and what is in its file of --save."""
    now = version(path)
    if now is None:
        return "nothing was saved"
    if now == before:
        return f"nothing was saved, and {path} is as it was before the run"
    return f"the trained model was saved to {path}"
