"""A disk under the files of a run: what may be there after a power cut at any operation.

    a folder   its entries as when it was synced, or as after any operation since
    a file     its bytes as when it was synced; or all; or half of the newer ones, then zeros

A folder keeps the order of its own operations; folders, and the bytes of files, do not wait for
each other. The files are real ones, of which calls of `os` are followed. A process that is killed,
without a power cut, leaves the newest entries and all bytes.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

Tree: TypeAlias = dict[str, bytes | None]
"""By path, what a file has; None for a folder."""

LOST, TORN, KEPT = "lost", "torn", "kept"
"""What may be left of bytes that were not synced."""

ENTRIES = ("rename", "mkdir", "rmdir", "unlink")
"""The calls that change the entries of a folder; new files are seen at the next call."""


class DiskFault(NamedTuple):
    """A call of `os` fails, on files of a name."""

    call: str
    name: str = "*"
    number: int = errno.ENOSPC


class Disk:
    """Follows the files below a folder.

    at_operation   called after each operation, in the thread that makes it
    fault          what fails now
    operations     how many there were
    """

    def __init__(self, root: Path, at_operation: Callable[["Disk"], None]) -> None:
        self.root, self._at_operation = root, at_operation
        self.fault: DiskFault | None = None
        self.operations = 0
        self._is_busy = False
        # by number of a folder: by name the numbers of what is in it, since it was synced
        self._entries = dict[int, list[dict[str, int]]]()
        self._files, self._synced = dict[int, int](), dict[int, bytes]()

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follows the calls of `os` within the block."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ENTRIES:
                patch.setattr(os, name, self._entry_call(getattr(os, name), name))
            patch.setattr(os, "pwrite", self._file_call(os.pwrite, "pwrite"))
            patch.setattr(os, "fsync", self._file_call(os.fsync, "fsync"))
            self._look()
            self._entries = {number: [of[-1]] for number, of in self._entries.items()}
            try:
                yield
            finally:
                for file in self._files.values():
                    os.close(file)

    def trees(self) -> list[Tree]:
        """What may be there after a power cut now, each once; the first one has all."""
        newest = {number: len(of) - 1 for number, of in self._entries.items()}
        oldest = dict.fromkeys(newest, 0)
        picks = [newest, oldest]
        for number, of in self._entries.items():
            for i in range(len(of)):
                picks += [{**newest, number: i}, {**oldest, number: i}]
        now = {number: _bytes_of(file) for number, file in self._files.items()}
        found = dict[frozenset[tuple[str, bytes | None]], Tree]()
        for pick in picks:
            for how in (KEPT, LOST, TORN):
                tree = dict(self._tree(os.stat(self.root).st_ino, pick, now, how))
                found.setdefault(frozenset(tree.items()), tree)
        return [*found.values()]

    # ---- what calls do

    def _entry_call(self, plain: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            self._fail(name, os.path.basename(os.fspath(path)))
            result = plain(path, *arguments, **options)
            if not self._is_busy and self._look():
                self._end_operation()
            return result

        return call

    def _file_call(self, plain: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(file: Any, *arguments: Any) -> Any:
            number = os.fstat(file).st_ino
            if self.fault:
                self._fail(name, self._name_of(number))
            result = plain(file, *arguments)
            if name == "fsync" and not self._is_busy:
                self._look()
                if number in self._entries:
                    del self._entries[number][:-1]
                elif number in self._files:
                    self._synced[number] = _bytes_of(self._files[number])
                self._end_operation()
            return result

        return call

    def _fail(self, call: str, name: str) -> None:
        fault = self.fault
        if fault and not self._is_busy and call == fault.call and fnmatch(name, fault.name):
            raise OSError(fault.number, os.strerror(fault.number))

    def _end_operation(self) -> None:
        self.operations += 1
        self._is_busy = True  # what it does is not followed
        try:
            self._at_operation(self)
        finally:
            self._is_busy = False

    # ---- what is there

    def _look(self) -> bool:
        """Notes the entries of all folders; returns True if any has changed."""
        is_changed = False
        for folder, _, _, number in os.fwalk(self.root):
            entries = dict[str, int]()
            for entry in sorted(os.listdir(number)):
                found = os.stat(entry, dir_fd=number, follow_symlinks=False)
                entries[entry] = found.st_ino
                if stat.S_ISREG(found.st_mode) and found.st_ino not in self._files:
                    # held open: its number is not given to another file, and its bytes stay
                    self._files[found.st_ino] = os.open(Path(folder, entry), os.O_RDONLY)
            known = self._entries.setdefault(os.fstat(number).st_ino, [{}])
            if known[-1] != entries:
                known.append(entries)
                is_changed = True
        return is_changed

    def _name_of(self, number: int) -> str:
        found = (path.name for path in self.root.rglob("*") if path.stat().st_ino == number)
        return next(found, "")

    def _tree(
        self, folder: int, pick: dict[int, int], now: dict[int, bytes], how: str, path: str = ""
    ) -> Iterator[tuple[str, bytes | None]]:
        for name, number in self._entries[folder][pick[folder]].items():
            inner = f"{path}{name}"
            if number in self._entries:
                yield inner, None
                yield from self._tree(number, pick, now, how, f"{inner}/")
                continue
            synced, content = self._synced.get(number, b""), now[number]
            if how == LOST:
                content = synced
            elif how == TORN and content != synced:
                old = len(synced) if content.startswith(synced) else 0
                half = (old + len(content)) // 2
                content = content[:half] + bytes(len(content) - half)
            yield inner, content


def _bytes_of(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def write_tree(tree: Tree, root: Path) -> None:
    """Makes what may be there after a power cut, in a folder."""
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
