"""KeptBuffers: the buffers of a model as they were when a step began, if it may be made again."""

from nnmpi.arrays.backend import Array
from nnmpi.nn import Module


class NothingKept:
    """No step is made again."""

    step = 0  # the last one that began here

    def keep(self, step: int) -> None:
        """A step begins: its forward passes will move buffers."""

    def put_back(self) -> None:
        """Buffers are as they were when the last step began."""


NOTHING_KEPT = NothingKept()


class KeptBuffers(NothingKept):
    """Copies of running statistics and of other buffers, which forward passes move."""

    def __init__(self, model: Module) -> None:
        self._modules = [module for module in model.modules() if module._buffers]
        self._kept: list[tuple[Module, str, Array]] = []

    def keep(self, step: int) -> None:
        self.step = step
        both = ((module, name) for module in self._modules for name in module._buffers)
        self._kept = [(module, name, getattr(module, name).copy()) for module, name in both]

    def put_back(self) -> None:
        for module, name, array in self._kept:
            getattr(module, name)[...] = array
