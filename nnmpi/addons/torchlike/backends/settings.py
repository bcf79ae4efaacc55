"""A base class for modules of settings that programs for PyTorch set, and that nnmpi ignores."""

from types import ModuleType
from typing import Any

from nnmpi.options.notes import note


class Settings(ModuleType):
    """A module whose attributes can be set; setting one notes for the user that nothing changes."""

    def __setattr__(self, name: str, value: Any) -> None:
        note(
            "settings of nnmpi.backends change nothing: algorithms are chosen by what they cost, "
            "kernels are deterministic, and --tf32 allows TF32"
        )
        super().__setattr__(name, value)
