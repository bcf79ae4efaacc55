"""The state of recording, and what is recorded: nodes, which stand for results, and storages, which
stand for memory.

a ──► node ──► node ──► root        parents of a node: nodes, leaves (a), storages of constants
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ContextDecorator
from contextvars import ContextVar, Token
from itertools import count
from typing import Any, Protocol, Self, TypeAlias

from nnmpi.arrays.kernels import Prepare


class OpRecorder(Protocol):
    """A callback that receives the ops of a model that is traced."""

    def __call__(
        self, op: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any], y: Any
    ) -> None:
        """Receives an op, its arguments, its options and its result."""

    def enter_no_grad(self) -> None:
        """Receives notice that a no_grad block begins, in which ops are not reported."""

    def run_again(self, function: Callable[[], Any]) -> Any:
        """Runs a function that is to run again in the backward pass."""


recording: ContextVar[bool | OpRecorder] = ContextVar("nnmpi_recording", default=True)
"""True if ops record nodes; while a model is traced, a recorder that is called as well. A context
variable, since ranks may be threads."""


class no_grad(ContextDecorator):
    """Switches off the recording of ops: `with no_grad():`, `@no_grad()` or `@no_grad`."""

    def __new__(cls, function: Any = None) -> Any:
        if function is None:
            return super().__new__(cls)
        if not callable(function):
            raise TypeError(f"no_grad({function!r:.40}): write `with nnmpi.no_grad():`")
        return cls()(function)

    def __init__(self) -> None:
        self._tokens: list[Token[bool | OpRecorder]] = []

    def __enter__(self) -> None:
        record = recording.get()
        if not isinstance(record, bool):
            record.enter_no_grad()
        self._tokens.append(recording.set(False))

    def __exit__(self, *exc: object) -> None:
        recording.reset(self._tokens.pop())

    def _recreate_cm(self) -> Self:
        """Returns a new context manager for each call of a decorated function, since threads may
        call it at the same time."""
        return type(self)()


tick = count(2, 2).__next__
"""Returns the next number of a counter that orders operations and in-place writes in time.

It is even; a node that is made again gets a number between those of the first time.
"""


AnyTensor: TypeAlias = Any
"""A Tensor; its class builds on this file and so cannot be named here. The tape reads `operand`,
`requires_grad`, `node` and `storage`, and calls `receive`, and `refresh` if `is_refreshed`."""


class Storage:
    """The time of the last in-place write to a tensor's memory, shared by all its views.

    A node has a Storage as its parent in place of a tensor that gets no gradient.

    is_copy: True for a copy where PyTorch has a view, so that a write would not reach the tensor
    is_lent: True if a view of the tensor was made, or a function holds it for its backward pass
    """

    __slots__ = ("is_copy", "is_lent", "written")
    is_refreshed = False

    def __init__(self, is_copy: bool = False) -> None:
        self.is_copy, self.is_lent, self.written = is_copy, False, 0

    def mark_written(self) -> None:
        """Notes an in-place write: a backward pass through ops that used the old values raises."""
        self.written = tick()

    @property
    def storage(self) -> "Storage":
        """The object itself: the tape asks every parent for its storage."""
        return self


class TapeNode:
    """A record of how a tensor was made: its parents, with one vjp each, but not the tensor itself.

    parents  for each argument: the node of a result, a leaf, the Storage of a tensor without a
             gradient, or None for an argument that is no tensor
    needs    for each argument: True if it gets a gradient
    vjps     for each argument: its vjp; the whole is None once a backward pass has used the node
    storage, dtype and shape are copied from the tensor
    """

    __slots__ = ("dtype", "needs", "parents", "prepare", "shape", "storage", "tick", "vjps")
    is_refreshed = runs_again = False
    size = 0

    def __init__(
        self,
        y: AnyTensor,
        parents: Sequence[Any],
        needs: Sequence[bool],
        vjps: Sequence[Any],
        prepare: Prepare | None = None,
    ) -> None:
        array = y.operand
        self.dtype, self.shape, self.storage = array.dtype, array.shape, y.storage
        self.parents, self.needs, self.tick = parents, needs, tick()
        self.vjps: Sequence[Any] | None = vjps
        self.prepare = prepare

    def clear(self) -> None:
        """Drops parents and vjps after a backward pass has used the node, which frees their
        arrays."""
        self.parents, self.needs, self.vjps, self.prepare = (), (), None, None

    def taken(self) -> "TapeNode":
        """Moves the contents of this node to a new node, and clears this one."""
        other = type(self).__new__(type(self))
        other.dtype, other.shape, other.storage = self.dtype, self.shape, self.storage
        other.parents, other.needs, other.tick = self.parents, self.needs, self.tick
        other.vjps, other.prepare = self.vjps, self.prepare
        self.clear()
        return other


class RepeatedNode(TapeNode):
    """A record of a function whose own nodes were dropped: it runs again in the backward pass.

    parents  the tensors and leaves that the function used, each leaf as often as it used it
    vjps     one function, which takes this node, runs it again and returns the node of its result
    size     the number of nodes that were dropped
    """

    __slots__ = ("size",)
    runs_again = True

    def taken(self) -> "TapeNode":
        other = super().taken()
        assert isinstance(other, RepeatedNode)
        other.size = self.size
        return other
