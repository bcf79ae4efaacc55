"""PyTorch's `accelerator`: the GPU of this process, if it has one."""

from nnmpi import cuda
from nnmpi.arrays import backend

is_available = cuda.is_available
device_count = cuda.device_count
current_device_index = cuda.current_device
set_device_index = cuda.set_device
synchronize = cuda.synchronize


def current_accelerator(check_available: bool = False) -> backend.Backend | None:
    """Returns the backend of this process's GPU, whose `type` is "cuda"; None if CUDA cannot be
    used. `check_available` is accepted as in PyTorch, and changes nothing."""
    return backend.get("cuda") if is_available() else None
