"""Groups of ranks, and conversion of tensors to rows, which are contiguous 1-D arrays."""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias
from weakref import ref

from nnmpi.addons.torchlike.distributed.rows import Rows, Then
from nnmpi.arrays.backend import Array, from_dlpack, xp_of
from nnmpi.autograd import Tensor
from nnmpi.comm import Comm

SHOWN = 8
"""The most members of a group that messages name."""


class ProcessGroup:
    """A group of ranks that call collectives together; `group.WORLD` has all ranks of the job.

    ranks  the members, by their numbers in the job
    rows   the collectives of the members; None if this rank is not a member
    models the DistributedDataParallel models of this rank, in the order in which they were made
    """

    def __init__(self, comm: Comm | None, ranks: Sequence[int], is_default: bool = False) -> None:
        self.ranks = tuple(ranks)
        self.rows = None if comm is None else Rows(comm, may_wait=is_default)
        self.models: list[ref[Any]] = []

    def rank(self) -> int:
        """The number of this rank in the group; -1 if it is no member."""
        return -1 if self.rows is None else self.rows.comm.rank

    def size(self) -> int:
        """The number of members; -1 if this rank is not a member."""
        return -1 if self.rows is None else len(self.ranks)

    def member(self, rank: int) -> int:
        """Returns the number in this group of a rank of the job; raises ValueError if outside."""
        if rank not in self.ranks:
            raise ValueError(f"rank {rank} is not in the group of {self}")
        return self.ranks.index(rank)

    def __str__(self) -> str:
        shown = [*map(str, self.ranks[:SHOWN]), *["..."] * (len(self.ranks) > SHOWN)]
        return f"{len(self.ranks)} rank{'s' * (len(self.ranks) != 1)} ({', '.join(shown)})"


Group: TypeAlias = ProcessGroup | None
"""The group of a call; None stands for all ranks."""

world_group: ContextVar[ProcessGroup | None] = ContextVar("nnmpi_world_group", default=None)
"""The group of all ranks of the job; a context variable, since ranks may be threads."""


def joined(group: Group = None) -> ProcessGroup:
    """Returns `group`, or the default group for None; raises ValueError if there is none."""
    members = group or world_group.get()
    if members is None:
        raise ValueError(
            "the process group is not initialized: call nnmpi.distributed.init_process_group()"
        )
    return members


def rows_of(group: Group) -> Rows:
    """The collectives of a group; raises ValueError if this rank is no member."""
    members = joined(group)
    if members.rows is None:
        rank = joined().rank()
        raise ValueError(
            f"rank {rank} calls a collective of {members}: let only members of a group call it"
        )
    return members.rows


def array_of(value: Any, call: str) -> Array:
    """Returns a tensor of any library as an array in the same memory, through DLPack; raises
    TypeError, which names the function `call`, for other objects."""
    if isinstance(value, Tensor):
        return value.array
    try:
        return from_dlpack(value)
    except TypeError as error:
        raise TypeError(f"{call}: {error}") from error


def to_read(value: Any, call: str) -> Array:
    """Returns a tensor as a 1-D array to read: a view if it is contiguous, else a copy."""
    array = array_of(value, call)
    return xp_of(array).ascontiguousarray(array).reshape(-1)


def to_write(value: Any, call: str) -> tuple[Array, Then]:
    """Returns a 1-D array for the new values of a tensor, and a function to call when they are
    there: it copies them back unless the array is a view, as of contiguous tensors. A later
    backward pass that needs the old values raises an error, as after other writes in place."""
    array = array_of(value, call)
    if not getattr(array.flags, "writeable", True):
        raise ValueError(f"{call} writes to this array, which is read-only: pass a copy")
    if isinstance(value, Tensor):
        value.mark_written()
    if array.flags.c_contiguous:
        return array.reshape(-1), _nothing
    row = xp_of(array).ascontiguousarray(array).reshape(-1)

    def put_back() -> None:
        array[...] = row.reshape(array.shape)

    return row, put_back


def _nothing() -> None:
    pass
