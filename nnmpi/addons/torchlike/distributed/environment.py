"""The environment variables of torchrun, for ranks that mpirun, mpiexec or srun has started."""

import os
import socket

import numpy as np

from nnmpi.comm import has_launcher, world

GIVEN = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "LOCAL_WORLD_SIZE": ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
}
"""For each variable of torchrun, the variables in which MPI launchers pass the same number."""

WITHOUT = {"LOCAL_RANK": "RANK", "LOCAL_WORLD_SIZE": "WORLD_SIZE"}
"""The variable used instead if a launcher passes none for the node: all ranks are one node."""


def set_variables() -> None:
    """Sets RANK, WORLD_SIZE and others as torchrun does under MPI, unless they are set."""
    if not has_launcher():
        return
    for name, launchers in GIVEN.items():
        variable = next((key for key in launchers if key in os.environ), WITHOUT.get(name, ""))
        if variable in os.environ:
            os.environ.setdefault(name, os.environ[variable])


def check_launcher() -> None:
    """Raises ValueError under torchrun: processes would train alone, without MPI."""
    ranks = os.environ.get("WORLD_SIZE", "1")
    if ranks != "1" and not has_launcher():
        raise ValueError(
            f"WORLD_SIZE is {ranks}, but no launcher of MPI has started this process, which would "
            f"train alone: start it by mpirun -n {ranks} python, or by python -m nnmpi.run "
            f"--nproc-per-node {ranks}, in place of torchrun"
        )


LONGEST_ADDRESS = 256  # bytes of a host's name and a port


def set_address() -> None:
    """Sets MASTER_ADDR and MASTER_PORT to a free port of rank 0, unless they are set; without a
    launcher this process is rank 0 of 1. Starts MPI; all ranks call it."""
    check_launcher()
    job = world() if has_launcher() else None
    if job is None:
        for name, alone in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
            os.environ.setdefault(name, alone)
    if {"MASTER_ADDR", "MASTER_PORT"} <= {*os.environ}:
        return
    host = "127.0.0.1" if job is None or len(job.node()) == job.size else socket.gethostname()
    with socket.socket() as free:
        free.bind(("", 0))
        text = f"{os.environ.get('MASTER_ADDR', host)} {free.getsockname()[1]}"
    address = np.array([text.encode()], f"S{LONGEST_ADDRESS}")
    if job is not None:
        job.broadcast(address.view(np.uint8))
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address[0].decode().split()
