"""What a run depends on besides data and model: options, versions, BLAS, hosts."""

import platform
from dataclasses import asdict

import numpy as np

import nnmpi
from nnmpi import blas
from nnmpi.comm import Comm, mpi_versions
from nnmpi.config import Config
from nnmpi.run.report.text import Event

NAME_BYTES = 64  # of a host; longer names are cut


def environment(config: Config, comm: Comm) -> Event:
    """What the start event says of them; every rank calls it. BLAS is that of the first rank."""
    return {
        "options": asdict(config),
        "versions": {
            "nnmpi": nnmpi.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            **mpi_versions(),
        },
        "blas": {"kernels": blas.core(), "threads": blas.threads()},
        "hosts": hosts(comm),
    }


def hosts(comm: Comm) -> dict[str, list[int]]:
    """The ranks of each host; every rank calls it."""
    rows = np.zeros((comm.size, NAME_BYTES), np.uint8)
    name = platform.node().encode()[:NAME_BYTES]
    rows[comm.rank, : len(name)] = np.frombuffer(name, np.uint8)
    comm.all_gather(rows)
    found: dict[str, list[int]] = {}
    for rank, row in enumerate(rows):
        found.setdefault(row.tobytes().rstrip(b"\0").decode(errors="replace"), []).append(rank)
    return found
