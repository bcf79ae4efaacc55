"""The versions of what computes: others may round otherwise."""

import platform

import numpy as np

from nnmpi.arrays import blas, native
from nnmpi.comm import mpi_versions
from nnmpi.version import __version__


def versions() -> dict[str, str]:
    """The versions of nnmpi, Python and the libraries."""
    return {
        "nnmpi": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        **mpi_versions(),
    }


def with_kernels() -> dict[str, str]:
    """The versions of the libraries, and the targets of BLAS and the compiled kernels."""
    return {**versions(), "blas": blas.core(), "native": native.INSTRUCTIONS}
