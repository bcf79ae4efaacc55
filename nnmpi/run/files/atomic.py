"""Files that are replaced whole or not at all: they are written beside the file of that name.

    .nnmpi-NAME-HOST-ID.part    hashes of the file's name and of the host, and a random number

The writer holds a lock on the part until it has replaced the file; the system releases the lock of
a process that is killed. The next writer of the same name removes the parts that nobody has locked.
"""

import fcntl
import hashlib
import os
import platform
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from nnmpi.quoting import shown
from nnmpi.run.files.links import followed

ELSEWHERE = 3600.0
"""Seconds after which an unlocked part is stale where a lock may not be seen: some end at the host,
and some file systems have none."""


class NotSavedError(ValueError):
    """The file cannot be written."""


@contextmanager
def refusing(
    path: str | os.PathLike[str], what: str = "save", remedy: str = "name another place"
) -> Iterator[None]:
    """Raises NotSavedError in the place of an OSError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise NotSavedError(f"cannot {what} {shown(path)}: {reason}; {remedy}") from None


@contextmanager
def replaced(path: Path, mode: str) -> Iterator[IO[Any]]:
    """A new file that replaces `path` when it is complete; a failure leaves an old file.

    A link is followed, and the new file has the permissions of the old one.
    """
    target = followed(path)
    _remove_stale(target)
    while True:
        part = target.with_name(f"{_name(target)}{_host()}-{uuid4().hex}.part")
        try:
            with part.open(mode) as file:
                lock(file, wait=True)
                if not part.exists():  # another writer took it for stale before
                    continue
                with suppress(OSError):  # no file is replaced: permissions are those of the umask
                    part.chmod(stat.S_IMODE(target.stat().st_mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(part, target)
                return
        finally:
            with suppress(OSError):
                part.unlink()


def _name(target: Path) -> str:
    """How the names of its parts start: `target.part` might be too long a name."""
    return f".nnmpi-{_short(os.fsencode(target.name))}-"


def _host() -> str:
    return _short(platform.node().encode())


def _short(name: bytes) -> str:
    return hashlib.sha256(name).hexdigest()[:12]


def _remove_stale(target: Path) -> None:
    """Removes the parts of this name whose writers were killed."""
    for part in target.parent.glob(f"{_name(target)}*.part"):
        with suppress(OSError), part.open("r+b") as file:
            is_old = time.time() - os.fstat(file.fileno()).st_mtime > ELSEWHERE
            from_here = part.name.startswith(_name(target) + _host())
            if (from_here or is_old) and (lock(file) or is_old):
                part.unlink()


def lock(file: IO[Any], wait: bool = False) -> bool:
    """Locks an open file until it is closed; False where the file system has no locks.

    Raises BlockingIOError if another process has the lock, or waits for it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def sync(path: Path) -> None:
    """Returns when a file, or the names in a folder, are on disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def check_target(path: str | os.PathLike[str], what: str = "save") -> None:
    """Raises NotSavedError if no file can be written at `path`; called before a run trains."""
    path, cannot = Path(path), f"cannot {what} {shown(path)}"
    check_not_read_only(path, what)
    with refusing(path, what, "name another file"):
        target = followed(path)
    folder, why = target.parent, ""
    if not folder.is_dir():
        why = f"there is no directory {shown(folder)}; make it first"
    elif path.is_dir():
        why = "it is a directory; name a file in it"
    elif path.exists() and not path.is_file():
        why = "it is a device or a pipe; name a file"
    elif not os.access(folder, os.W_OK):
        why = f"no permission to write in {shown(folder)}; name another place"
    if why:
        raise NotSavedError(f"{cannot}: {why}")


def check_not_read_only(path: str | os.PathLike[str], what: str) -> None:
    """Raises NotSavedError if `path` is a file that nobody may write, not even root."""
    cannot = f"cannot {what} {shown(path)}"
    with refusing(path, what):
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:  # the usual case
            return
    if stat.S_ISREG(mode) and not (mode & 0o222 and os.access(path, os.W_OK)):
        raise NotSavedError(f"{cannot}: the file is read-only; chmod u+w it, or name another file")
