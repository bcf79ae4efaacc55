"""Atomic replacement of files: a temporary file in the same directory is renamed to the final name.

    .nnmpi-HASH.part    the temporary file; HASH is a hash of the file's name

The writer locks the temporary file until it has been renamed. If the process is killed before, the
temporary file stays, and the next writer of the same file overwrites it.
"""

import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from nnmpi.options.quoting import shown


class NotSavedError(ValueError):
    """Raised for a file that cannot be written."""


@contextmanager
def refusing(
    path: str | os.PathLike[str], action: str = "save", remedy: str = "name another place"
) -> Iterator[None]:
    """Returns a context that raises NotSavedError, with the `remedy`, in place of an OSError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        if isinstance(error, BlockingIOError):
            reason = "another process writes it"
        raise NotSavedError(f"cannot {action} {shown(path)}: {reason}; {remedy}") from None


@contextmanager
def replaced(path: Path, mode: str) -> Iterator[IO[Any]]:
    """Opens a new file that replaces `path` when the block ends without an error; otherwise the old
    file remains. A link is followed, and the new file gets the permissions of the old one."""
    target = Path(os.path.realpath(path))
    name = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:12]
    part = target.with_name(f".nnmpi-{name}.part")  # `target.part` might be too long a name

    def kept(path: str, _: int) -> int:
        """Opens the temporary file untruncated, since another process may write to it."""
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    with open(part, mode, opener=kept) as file:
        lock(file)
        try:
            file.truncate(0)  # only now that the lock is held: it may be what another one writes
            with suppress(OSError):  # no old file: the permissions follow the umask
                part.chmod(stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)


def lock(file: IO[Any]) -> None:
    """Locks an open file until it is closed, if the file system has locks; raises BlockingIOError
    if another process has the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return


def sync(path: Path) -> None:
    """Waits until a file, or the entries of a folder, are on disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def check_target(path: str | os.PathLike[str], action: str = "save") -> None:
    """Raises NotSavedError if no file can be written at `path`, so that a run can check it before
    it trains. `action`, such as "save", is the verb of the message."""
    check_not_read_only(path, action)
    cannot, path = f"cannot {action} {shown(path)}", Path(os.path.realpath(path))
    folder, why = path.parent, ""
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


def check_not_read_only(path: str | os.PathLike[str], action: str) -> None:
    """Raises NotSavedError for a file without write permission, even for root."""
    cannot = f"cannot {action} {shown(path)}"
    with refusing(path, action):
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:  # the usual case
            return
    if stat.S_ISREG(mode) and not (mode & 0o222 and os.access(path, os.W_OK)):
        raise NotSavedError(f"{cannot}: the file is read-only; chmod u+w it, or name another file")
