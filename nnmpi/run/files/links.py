"""Symbolic links on the way to a file that is written, which another user may have put there."""

import errno
import os
import stat
from pathlib import Path

from nnmpi.quoting import shown

MOST = 40  # links on one way: systems follow no more


def refuse_planted(path: str | os.PathLike[str]) -> None:
    """Raises PermissionError if a link on the way lies in a folder that every user may write.

    Systems follow a link of the folder's owner or of one's own there, if they look at all
    (protected_symlinks); here one in the place of the file itself is never followed.
    """
    at, left, links = Path(), [*reversed(Path(path).parts)], 0
    while left and links < MOST:
        step = at / left.pop()
        if not os.path.islink(step):
            at = step
            continue
        folder, owner = os.stat(at), os.lstat(step).st_uid
        is_known = owner in (folder.st_uid, os.geteuid())
        if folder.st_mode & stat.S_IWOTH and not (left and is_known):
            what = f"{shown(step)} is a symbolic link in a folder that every user may write"
            raise PermissionError(errno.EACCES, what)
        left += reversed(Path(os.readlink(step)).parts)
        links += 1
