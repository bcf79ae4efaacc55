"""Recording of ops for the backward pass: the switch that turns it on and off, and its records.

TapeNode records how a result was made; Storage records writes to the memory of a tensor.

    a ──► node ──► node ──► root        parents of a node: other nodes, leaves (a), and Storages of
                                        tensors without a gradient
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ContextDecorator
from contextvars import ContextVar, Token
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import count
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np

from nnmpi.addons import Table
from nnmpi.arrays.backend import to_host
from nnmpi.arrays.kernels import Prepare


class OpRecorder(Protocol):
    """An object that is told of ops, and what happens between them, while a model is traced. It may
    record that, ignore it, or raise an error."""

    def __call__(
        self, op: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any], y: Any
    ) -> None:
        """Records an op that has run on these arguments, with its result y."""

    def enter(self, context: str) -> None:
        """Called when a block of the program begins: "no_grad", in which the recorder is not called
        with ops, or "autocast", in which ops compute in other types."""

    def note_older(self, t: Any) -> None:
        """Called before t is used whose memory was written to through another tensor, such as a
        view of t: its values are no longer those of the recorded op. Records or refuses that."""

    def run_again(self, function: Callable[[], Any]) -> Any:
        """Calls `function`; the backward pass runs its ops again (checkpointing)."""


recording: ContextVar[bool | OpRecorder] = ContextVar("nnmpi_recording", default=True)
"""True if ops record nodes; or a tracing model's recorder. Ranks may be threads."""


class OpTypes(Protocol):
    """Chooses the types in which ops compute; equal if they choose the same types."""

    def arguments(
        self, op: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Returns the arguments of an op, converted to the types in which the op is to compute."""

    def wide(self, t: Any) -> Any:
        """Returns t, an argument that needs float32, converted to it if it has 16 bits."""

    def afresh(self) -> "OpTypes":
        """Returns an object that chooses the same types, without converted copies of parameters."""


op_types: ContextVar[OpTypes | None] = ContextVar("nnmpi_op_types", default=None)
"""The object that chooses the types of ops; None: they compute in those of their arguments."""


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
            record.enter("no_grad")
        self._tokens.append(recording.set(False))

    def __exit__(self, *exc: object) -> None:
        recording.reset(self._tokens.pop())

    def _recreate_cm(self) -> Self:
        """Returns a new context manager for each decorated call: threads may call it."""
        return type(self)()


tick = count(2, 2).__next__
"""Returns the next number of a counter that orders operations and in-place writes in time. It is
even; a node that is made again gets a number between those of the first time."""


AnyTensor: TypeAlias = Any
"""A Tensor; its class builds on this file and so cannot be named here. The tape reads `_array`,
`requires_grad`, `node` and `storage`, and calls `receive`, and `refresh` if `is_refreshed`."""


MEMORY: Table[Callable[..., Any]] = Table("memory")
"""By name: what programs for PyTorch do with memory, such as writes to views."""


@cache
def memory_row(name: str) -> Any:
    """Returns a function of the table `memory`, of what programs do with memory that tensors share;
    None without its add-on. Looked up once, since small steps call them often."""
    return MEMORY.row(name)


def memory_needed(name: str) -> Any:
    """Returns a function of the table `memory`, which is needed once an attribute, such as
    `Storage.sharing`, is set that no plain run sets.

    Raises RuntimeError without its add-on; after an AttributeError in a property Python would ask
    for another attribute.
    """
    if (function := memory_row(name)) is None:
        raise RuntimeError(
            f"tensors share memory, and {name} is of an add-on that is not here: install nnmpi "
            "with it, or write to a clone()"
        )
    return function


class Outdated(Enum):
    """Why tensors in shared memory have to be looked at before they are used (by `Tensor.renew`),
    other than a write through which gradients flow."""

    INPLACE = "a layer with inplace=True would have written to the tensor"
    MOVED = "a parameter has left the memory"
    COPIED = "it is a copy where PyTorch may have a view, or such a copy of it was written to"


class Move(NamedTuple):
    """A move of the values of a parameter from the array `old` to the array `new`, which both have
    them in the order of axes `memory_axes`; `storage` is the Storage of `new`."""

    memory_axes: tuple[int, ...]
    storage: "Storage"
    old: Any
    new: Any


@dataclass(slots=True, eq=False)
class Sharing:
    """The tensors that share one block of memory, and the last write to it, by time (`tick`).

    time     the time of the last write that was noted here; a later one may not have been noted
    block    a weak reference to the array that owned the memory at that time
    moved    where the values are now, if they have been moved to other memory; else None
    owners   weak references to the parameters that have this memory
    renewed  the time of the last write through which gradients must flow: a tensor in this memory
             with an older tape node gets a new one before it is used (`Tensor.renew`)
    outdated   why these tensors have to be looked at before they are used, or None
    unnoticed  the time of the last write that autograd does not notice, to a tensor `t.data`
    """

    block: Any = None
    moved: Move | None = None
    owners: tuple[Any, ...] = ()
    renewed: int = 0
    outdated: Outdated | None = None
    time: int = 0
    unnoticed: int = 0

    def mark_moved(self, move: Move) -> None:
        """Makes each tensor with this record follow the values to other memory, at its next use."""
        self.moved, self.outdated = move, Outdated.MOVED


class Storage:
    """The last in-place write to a tensor's memory, shared by all tensors in this memory.

    An operand that gets no gradient has no tape node; its Storage takes the place of a parent, so
    that the backward pass notices if the operand was overwritten meanwhile.

    sharing   None while only one tensor has the memory; otherwise the record of those that share
              it: views, and arrays or functions of the program that hold the memory
    """

    __slots__ = ("sharing", "written")
    is_refreshed = keeps_memory = False
    sharing: Sharing | None

    def __init__(self) -> None:
        self.sharing, self.written = None, 0

    def sharing_record(self) -> Sharing:
        """Returns the record of the tensors that share this memory, made if there is none."""
        if self.sharing is None:
            self.sharing = Sharing()
        return self.sharing

    def mark_written(self) -> None:
        """Records an in-place write: backward through ops that used old values raises."""
        self.written = tick()

    @property
    def root(self) -> "Storage":
        """The Storage that records writes for the whole block of memory: this one, or for a tensor
        made by `detach` that of the original tensor."""
        return self

    @property
    def storage(self) -> "Storage":
        """The object itself: the tape asks every parent for its storage."""
        return self

    @property
    def of_all_writes(self) -> "Storage":
        """The Storage that records each write to the memory, not only those autograd notices."""
        return self

    def mark_unnoticed(self) -> None:
        """Records a write that autograd misses: reshaped copies now have old values."""
        (self.sharing or self.sharing_record()).unnoticed = tick()

    def check_write(self) -> None:
        """Raises RuntimeError if a program may not write in place to the memory."""

    def check_write_to_copy(self) -> None:
        """Raises RuntimeError if a program may not write to a reshaped copy of the memory."""

    def last_write(self) -> int:
        """Returns a number that is another one after each write, noticed by autograd or not."""
        return max(self.written, self.sharing_record().unnoticed)

    def without_history(self) -> "Storage":
        """Returns a Storage for `t.data`, whose writes autograd does not notice."""
        return UnnoticedStorage(self.of_all_writes)

    def to_numpy(self, array: Any) -> np.ndarray:
        """Returns an array of this memory as a NumPy array, which on the CPU shares the memory."""
        self.sharing_record()
        host = to_host(array)
        return host if type(host) is np.ndarray else host.view()  # not a scalar, without data too


class GradientStorage(Storage):
    """The Storage of a leaf's gradient, to which `t.grad.data = value` writes."""

    __slots__ = ()
    keeps_memory = True

    def __init__(self) -> None:
        self.sharing, self.written = Sharing(), 0


class DetachedStorage(Storage):
    """The Storage of `t.detach()`: writes to its memory count as writes to t, but no gradient flows
    between t and the detached tensor."""

    __slots__ = ("root",)

    root: Storage

    def __init__(self, storage: Storage) -> None:
        self.root = storage.root

    @property
    def sharing(self) -> Sharing | None:  # type: ignore[override]
        return self.root.sharing

    @property
    def of_all_writes(self) -> Storage:
        return self.root.of_all_writes

    @property
    def written(self) -> int:
        return self.root.written

    @written.setter
    def written(self, time: int) -> None:
        self.root.written = time

    def sharing_record(self) -> Sharing:
        return self.root.sharing_record()

    def mark_written(self) -> None:
        self.root.mark_written()


class UnnoticedStorage(Storage):
    """The Storage of `t.data`, to which autograd does not notice writes; `noticed` is that of t."""

    __slots__ = ("noticed",)

    def __init__(self, noticed: Storage) -> None:
        self.noticed, self.written, self.sharing = noticed, 0, noticed.sharing_record()

    @property
    def of_all_writes(self) -> Storage:
        return self.noticed

    def mark_written(self) -> None:
        self.written = tick()
        self.noticed.mark_unnoticed()


class TapeNode:
    """A record of how a tensor was made: its parents, with one vjp each, but not the tensor itself.

    parents  for each argument: the node of a result, a leaf, the Storage of a tensor without a
             gradient, or None for an argument that is no tensor
    needs    for each argument: True if it gets a gradient
    vjps     for each argument: its vjp; None in place of all once a backward pass has used the node
    storage, dtype and shape are copied from the tensor
    """

    __slots__ = ("dtype", "needs", "parents", "prepare", "shape", "storage", "tick", "vjps")
    is_refreshed = runs_again = False
    has_grad = True  # but for parameters, whose gradient has memory before it arrives
    size = 0

    def __init__(
        self,
        y: AnyTensor,
        parents: Sequence[Any],
        needs: Sequence[bool],
        vjps: Sequence[Any],
        prepare: Prepare | None = None,
    ) -> None:
        array = y._array
        self.dtype, self.shape, self.storage = array.dtype, array.shape, y.storage
        self.parents, self.needs, self.tick = parents, needs, tick()
        self.vjps: Sequence[Any] | None = vjps
        self.prepare = prepare

    def clear(self) -> None:
        """Drops parents and vjps, and so their arrays, after a backward pass."""
        self.parents, self.needs, self.vjps, self.prepare = (), (), None, None

    def taken(self) -> "TapeNode":
        """Moves the contents of this node to a new node, and returns that. This node is left empty,
        as after a backward pass, so that a second pass through it raises an error."""
        other = type(self).__new__(type(self))
        other.dtype, other.shape, other.storage = self.dtype, self.shape, self.storage
        other.parents, other.needs, other.tick = self.parents, self.needs, self.tick
        other.vjps, other.prepare = self.vjps, self.prepare
        self.clear()
        return other


class RepeatedNode(TapeNode):
    """The node of a function that is to run again in the backward pass.

    parents  nodes of tensors, and leaves, that the function used; a leaf once for each use
    vjps     one function: called with this node, it runs the checkpointed function again and
             returns the node of its result
    size     the number of nodes that recording the function would have made"""

    __slots__ = ("size",)
    runs_again = True

    def taken(self) -> "TapeNode":
        other = super().taken()
        assert isinstance(other, RepeatedNode)
        other.size = self.size
        return other
