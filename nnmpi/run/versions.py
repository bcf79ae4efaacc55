"""The versions of what computes: others may round otherwise."""

import platform

import numpy as np

from nnmpi.arrays import blas, native
from nnmpi.comm import mpi_versions
from nnmpi.version import __version__


def versions() -> dict[str, str]:
    """Those of the libraries."""
    return {
        "nnmpi": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        **mpi_versions(),
    }


def with_kernels() -> dict[str, str]:
    """Those of the libraries, and what BLAS and the compiled kernels are made for."""
    return {**versions(), "blas": blas.core(), "native": native.INSTRUCTIONS}
