"""Whether operations are recorded, and in what: nodes, which stand for results, and storages, which
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
    """Is told what a model does that is traced."""

    def __call__(
        self, op: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any], y: Any
    ) -> None:
        """Called with each op, its arguments, its options and its result."""

    def enter_no_grad(self) -> None:
        """Called before no_grad, within which it is told nothing."""


recording: ContextVar[bool | OpRecorder] = ContextVar("nnmpi_recording", default=True)
"""Whether ops record nodes; a recorder, which is called beside that, where a model is traced. A
context variable, since ranks may be threads."""


class no_grad(ContextDecorator):
    """Within it ops record nothing: `with no_grad():`, `@no_grad()` or `@no_grad`."""

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
        """A new one for each call of a decorated function: many threads may call it at once."""
        return type(self)()


tick = count(1).__next__
"""Numbers operations and in-place writes in the order in which they happen."""


AnyTensor: TypeAlias = Any
"""A Tensor, which is made with this file. The tape asks for `operand`, `requires_grad`, `node`,
`storage`, and calls `receive`, and `refresh` where it `is_refreshed`."""


class Storage:
    """When the memory of a tensor was last written in place; its views share this object.

    It is a parent of nodes, in the place of a tensor that gets no gradient.

    is_copy: whether it stands for a view of other memory, which a write would not reach
    """

    __slots__ = ("is_copy", "written")
    is_refreshed = False

    def __init__(self, is_copy: bool = False) -> None:
        self.is_copy, self.written = is_copy, 0

    @property
    def storage(self) -> "Storage":
        """This object itself; the tape asks every parent for its storage."""
        return self


class TapeNode:
    """How a tensor was made, without the tensor: a parent beside each vjp.

    parents  what each argument is on the tape: the node of a result, a leaf itself, the Storage of
             a tensor without a gradient, None of what is no tensor
    needs    which of them get a gradient
    vjps     of these; None once a backward pass has used the node
    storage, dtype and shape are those of the tensor
    """

    __slots__ = ("dtype", "made", "needs", "parents", "prepare", "shape", "storage", "vjps")
    is_refreshed = False

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
        self.parents, self.needs, self.made = parents, needs, tick()
        self.vjps: Sequence[Any] | None = vjps
        self.prepare = prepare

    def clear(self) -> None:
        """A backward pass has used it: frees what its vjps hold."""
        self.parents, self.needs, self.vjps, self.prepare = (), (), None, None

    def taken(self) -> "TapeNode":
        """A node with all that this one has, which is cleared."""
        other = TapeNode.__new__(TapeNode)
        other.dtype, other.shape, other.storage = self.dtype, self.shape, self.storage
        other.parents, other.needs, other.made = self.parents, self.needs, self.made
        other.vjps, other.prepare = self.vjps, self.prepare
        self.clear()
        return other
