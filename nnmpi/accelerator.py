"""PyTorch's `accelerator`: the GPU of this process, if it has one."""

from nnmpi import cuda
from nnmpi.arrays import backend

is_available = cuda.is_available
device_count = cuda.device_count
current_device_index = cuda.current_device
set_device_index = cuda.set_device
synchronize = cuda.synchronize


def current_accelerator(check_available: bool = False) -> backend.Backend | None:
    """The device of the GPU, with the `type` "cuda"; None without a GPU."""
    return backend.get("cuda") if is_available() else None
