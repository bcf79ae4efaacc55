"""The check that the arrays of a file fit into memory."""

import os

from nnmpi.arrays.cgroup import memory_limit
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import RefusedError


def check_room(file: object, needs: str, count: int) -> None:
    """Raises RefusedError if arrays of `count` bytes would not fit into memory. The message begins
    with `file` and `needs`, a phrase such as "an array of 10x3 has"."""
    memory = memory_size()
    if count > memory:
        raise RefusedError(
            f"{shown(file)}: {shown(needs)} {count:,} bytes, but there are only {memory:,} "
            "bytes of memory; check the file, or take fewer samples"
        )


def memory_size() -> int:
    """The bytes of memory of the machine, or of its control group."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(machine, memory_limit() or machine)
