"""The environment variables of torchrun, for ranks that mpirun, mpiexec or srun has started."""

import os

from nnmpi.comm import has_launcher

GIVEN = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "LOCAL_WORLD_SIZE": ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
}
"""By variable of torchrun: those in which launchers pass the same number."""

WITHOUT = {"LOCAL_RANK": "RANK", "LOCAL_WORLD_SIZE": "WORLD_SIZE"}
"""Where a launcher says nothing of nodes, the job counts as one node."""


def set_variables() -> None:
    """Sets RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE as torchrun does, if a launcher of MPI
    has started this process; variables that are set stay as they are."""
    if not has_launcher():
        return
    for name, launchers in GIVEN.items():
        found = next((key for key in launchers if key in os.environ), WITHOUT.get(name, ""))
        if found in os.environ:
            os.environ.setdefault(name, os.environ[found])
