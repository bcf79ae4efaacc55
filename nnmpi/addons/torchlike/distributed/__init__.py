"""PyTorch's `torch.distributed`, over MPI: groups of ranks, collectives, messages.

A script for torchrun runs under mpirun, or by `python -m nnmpi.run --nproc-per-node 2 script.py`.
Importing this module sets the variables of torchrun (`environment`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nnmpi.addons import finder
from nnmpi.addons.torchlike.distributed import environment
from nnmpi.addons.torchlike.distributed.collectives import (
    all_gather,
    all_gather_into_tensor,
    all_gather_object,
    all_gather_single,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    broadcast_object_list,
    gather,
    irecv,
    isend,
    recv,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_tensor,
    scatter,
    send,
)
from nnmpi.addons.torchlike.distributed.group import Group, ProcessGroup, joined, world_group
from nnmpi.addons.torchlike.distributed.rows import Handle, ReduceOp
from nnmpi.comm import Comm, job

__all__ = [
    "ProcessGroup", "ReduceOp", "all_gather", "all_gather_into_tensor", "all_gather_object",
    "all_gather_single", "all_reduce", "all_to_all", "all_to_all_single", "barrier", "broadcast",
    "broadcast_object_list", "destroy_process_group", "gather", "get_backend",
    "get_process_group_ranks", "get_rank", "get_world_size", "group", "init_process_group",
    "irecv", "is_available", "is_initialized", "isend", "new_group", "recv", "reduce",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "send",
]  # fmt: skip

Work = Handle
environment.set_variables()


class _WorldType(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:  # noqa: N802 - PyTorch's name
        """The group of all ranks of the job; None before `init_process_group`."""
        return world_group.get()


class group(metaclass=_WorldType):  # noqa: N801 - PyTorch's name
    """A namespace with the default group as `group.WORLD`, as in PyTorch."""


def init_process_group(
    backend: str | None = None, *args: Any, comm: Comm | None = None, **options: Any
) -> None:
    """Makes all ranks of mpirun, or with `comm` those of this Comm, the default group.

    The backend is MPI, whatever its name; addresses, ranks and time limits change nothing, since
    the launcher knows the ranks, and NNMPI_TIMEOUT limits waits.
    """
    if is_initialized():
        raise ValueError("init_process_group was called before: call destroy_process_group() first")
    if comm is None:
        environment.check_launcher()
        comm = job()
    world_group.set(ProcessGroup(comm, range(comm.size), is_default=True))


def destroy_process_group(group: Group = None) -> None:
    """Unsets the default group, or frees another group; all members of the group call it."""
    ended = joined(group)
    if ended is world_group.get():
        world_group.set(None)
    elif ended.rows is not None:
        ended.rows.comm.free()


def new_group(ranks: Sequence[int] | None = None, *args: Any, **options: Any) -> ProcessGroup:
    """Makes a group of some ranks of the job, by default of all. All ranks of the job call it,
    members or not. Other arguments change nothing."""
    everyone = joined()
    assert everyone.rows is not None
    comm, members = everyone.rows.comm, everyone.ranks if ranks is None else sorted(ranks)
    for rank in members:
        everyone.member(rank)
    is_member = comm.rank in members
    return ProcessGroup(comm.subset(members if is_member else ()), members)


def is_available() -> bool:
    """Returns True: without MPI this module works with one rank."""
    return True


def is_initialized() -> bool:
    """True if there is a default group."""
    return world_group.get() is not None


def get_rank(group: Group = None) -> int:
    """The number of this rank, in the job or in a group; -1 if it is no member."""
    return joined(group).rank()


def get_world_size(group: Group = None) -> int:
    """The number of ranks of the job or of a group; -1 if this rank is no member."""
    return joined(group).size()


def get_process_group_ranks(group: Group = None) -> list[int]:
    """The members of a group, by their numbers in the job."""
    return [*joined(group).ranks]


def get_backend(group: Group = None) -> str:
    """The name of the backend: "mpi"."""
    joined(group)
    return "mpi"


if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = finder.refuser("nnmpi.distributed", "distributed")
