"""Symbolic links on the way to a file that is written, which another user may have put there."""

import errno
import os
import stat
from pathlib import Path

from nnmpi.quoting import shown

MOST = 40  # links on one way: systems follow no more


def followed(path: str | os.PathLike[str]) -> Path:
    """Where the links on the way to a file lead: a path without links, which need not exist.

    Raises PermissionError for a link in a folder that every user may write. Systems follow a link
    of the folder's owner or of one's own there, if they look at all (protected_symlinks); here one
    in the place of the file itself is never followed.
    """
    at, left, links = Path(), [*reversed(Path(path).parts)], 0
    while left:
        step = at / left.pop()
        if not os.path.islink(step):
            at = step
            continue
        links += 1
        if links > MOST:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        folder, owner = os.stat(at), os.lstat(step).st_uid
        is_known = owner in (folder.st_uid, os.geteuid())
        if folder.st_mode & stat.S_IWOTH and not (left and is_known):
            what = f"{shown(step)} is a symbolic link in a folder that every user may write"
            raise PermissionError(errno.EACCES, what)
        left += reversed(Path(os.readlink(step)).parts)
    return at
