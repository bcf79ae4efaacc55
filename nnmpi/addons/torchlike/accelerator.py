"""PyTorch's `accelerator`: the GPU of this process, if it has one."""

from typing import TYPE_CHECKING

from nnmpi.addons import finder
from nnmpi.addons.torchlike import cuda
from nnmpi.arrays import backend

is_available = cuda.is_available
device_count = cuda.device_count
current_device_index = cuda.current_device
set_device_index = cuda.set_device
synchronize = cuda.synchronize


def current_accelerator(check_available: bool = False) -> backend.Backend | None:
    """Returns this process's GPU as a backend, or None; `check_available` changes nothing."""
    return backend.get("cuda") if is_available() else None


if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = finder.refuser("nnmpi.accelerator", "cuda")
