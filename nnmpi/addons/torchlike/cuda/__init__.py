"""PyTorch's `cuda`: whether there is a GPU, and how many, and calls that nnmpi does not need.

A process uses one GPU: rank r uses GPU number r mod the number of GPUs. `nnmpi.manual_seed` seeds
all devices. So the calls that choose and seed devices do nothing.
"""

from typing import TYPE_CHECKING, Any

from nnmpi import addons
from nnmpi.addons import finder
from nnmpi.arrays import backend


def is_available() -> bool:
    """True if CuPy is installed and finds a GPU."""
    return not backend.get("auto").is_host


def device_count() -> int:
    """The number of GPUs that this process uses: 1, or 0 without one."""
    return int(is_available())


def current_device() -> int:
    """The number of the GPU among those of this process: 0."""
    return 0


def set_device(device: Any) -> None:
    """Does nothing: each rank uses the GPU that its number determines."""


def manual_seed(seed: int) -> None:
    """Does nothing: `nnmpi.manual_seed` seeds the random numbers of all devices."""


manual_seed_all = manual_seed


def empty_cache() -> None:
    """Does nothing: freed memory stays with the process, which uses it again."""


def synchronize(device: Any = None) -> None:
    """Waits until the GPU has finished all kernels and copies of this process."""
    if is_available():
        backend.get("cuda").xp.cuda.get_current_stream().synchronize()


if not TYPE_CHECKING:  # so that type checkers still know which names there are

    def __getattr__(name: str) -> Any:
        if where := addons.names_of("nnmpi.cuda").get(name):
            return addons.loaded(where)
        raise finder.missing(finder.no_name("nnmpi.cuda", name, "cuda"))
