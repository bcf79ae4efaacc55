"""What the ranks of this process take and give back: communicators, memory of a node, and the
transports of both."""

from collections import Counter
from typing import Any

import pytest

from nnmpi.comm import Comm
from nnmpi.comm.shared_memory import NodeMemory, SharedBuffer
from nnmpi.comm.transport.threads import ThreadTransport


class Counted:
    """Every Comm that is split off, every memory that is made, and how often each is freed."""

    maker: type = Comm
    takes: tuple[str, ...] = "split", "shared", "node_memory"
    frees: tuple[type, ...] = Comm, SharedBuffer, NodeMemory

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.taken: dict[str, list[object]] = {}
        self._freed: Counter[object] = Counter()
        for name in self.takes:
            self._note_takes(patch, name)
        for kind in self.frees:
            self._note_frees(patch, kind)

    @property
    def kinds(self) -> set[str]:
        """What was taken at all."""
        return {name for name, taken in self.taken.items() if taken}

    @property
    def left(self) -> list[object]:
        """What was not freed, or more than once."""
        return [x for taken in self.taken.values() for x in taken if self._freed[x] != 1]

    def _note_takes(self, patch: pytest.MonkeyPatch, name: str) -> None:
        take, taken = getattr(self.maker, name), self.taken.setdefault(name, [])

        def noted(*arguments: Any, **named: Any) -> Any:
            made = take(*arguments, **named)
            taken.extend([] if made is None else [made])
            return made

        patch.setattr(self.maker, name, noted)

    def _note_frees(self, patch: pytest.MonkeyPatch, kind: type) -> None:
        free = kind.free  # type: ignore[attr-defined]

        def noted(one: object, **named: Any) -> None:
            free(one, **named)
            self._freed[one] += 1

        patch.setattr(kind, "free", noted)


class CountedTransports(Counted):
    """Every transport that is made of another one, and how often each is freed."""

    maker = ThreadTransport
    takes = "duplicate", "split", "group"
    frees = (ThreadTransport,)
