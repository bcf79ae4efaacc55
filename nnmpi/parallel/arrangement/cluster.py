"""Cluster: what is known of the ranks of a job before it is decided what each of them does."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np

PLENTY = 1 << 62
"""Bytes of shared memory where there is no telling."""


class Cluster(NamedTuple):
    """One entry a rank.

    nodes        a number of its node; ranks with the same one share memory
    free_memory  bytes of shared memory that are free on its node
    spare_cores  cores that it has besides those that BLAS uses
    any_thread   whether several threads of it may use MPI
    devices      the number of its GPU on its node, which several ranks may share; None: the CPU
    survives     whether other ranks go on if one is lost
    has_nccl     whether all ranks find NCCL
    """

    nodes: tuple[int, ...]
    free_memory: tuple[int, ...]
    spare_cores: tuple[int, ...]
    any_thread: bool
    devices: tuple[int | None, ...]
    survives: bool = False
    has_nccl: bool = False

    @classmethod
    def on_paper(cls, ranks: int, nodes: int = 1, device: str = "cpu") -> Self:
        """A cluster of this many ranks on nodes of about equal size, consecutive ranks together.

        With device "cuda", each has a GPU of its own.
        """
        there = np.arange(ranks) * nodes // ranks
        gpus = np.arange(ranks) - np.searchsorted(there, there)
        devices = tuple(gpus.tolist()) if device == "cuda" else (None,) * ranks
        return cls(
            tuple(there.tolist()),
            (PLENTY,) * ranks,
            (0,) * ranks,
            any_thread=False,
            devices=devices,
        )

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.nodes)

    @property
    def has_devices(self) -> bool:
        """Whether ranks compute on GPUs: all do, or none."""
        return self.devices[0] is not None

    @property
    def shared_gpu(self) -> tuple[int, int] | None:
        """Two ranks that have one GPU, if there are such."""
        found: dict[tuple[int, int | None], int] = {}
        for r, gpu in enumerate(zip(self.nodes, self.devices, strict=True)):
            if found.setdefault(gpu, r) != r:
                return found[gpu], r
        return None

    def counts(self, ranks: Iterable[int]) -> Counter[int]:
        """How many of these ranks are on each node."""
        return Counter(map(self.nodes.__getitem__, ranks))

    def near(self, rank: int, ranks: Iterable[int]) -> tuple[int, ...]:
        """The ranks among `ranks` that are on the node of `rank`."""
        return self.on_node(self.nodes[rank], ranks)

    def on_node(self, node: int, ranks: Iterable[int]) -> tuple[int, ...]:
        """The ranks among `ranks` that are on a node."""
        return tuple(r for r in ranks if self.nodes[r] == node)

    def on_one_node(self, ranks: tuple[int, ...]) -> bool:
        """Whether these ranks share memory."""
        return len({*map(self.nodes.__getitem__, ranks)}) == 1
