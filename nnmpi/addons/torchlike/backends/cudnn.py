"""PyTorch's settings of cuDNN, which change nothing."""

import sys

from nnmpi.addons.torchlike.backends.settings import Settings
from nnmpi.arrays import backend

benchmark, deterministic, enabled, allow_tf32 = False, True, True, False


def is_available() -> bool:
    """True if CuPy is installed and finds a GPU."""
    return not backend.get("auto").is_host


sys.modules[__name__].__class__ = Settings
