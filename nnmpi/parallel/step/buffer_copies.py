"""BufferCopies: the buffers of a model as they were, which are put back if a rank is lost."""

from nnmpi.arrays.backend import Array
from nnmpi.nn import Module


class BufferCopies:
    """Copies of the buffers of a model, by module and name: a forward pass may assign another array
    to a buffer."""

    def __init__(self, model: Module) -> None:
        self._modules = [module for module in model.modules() if module._buffers]
        self._copies: list[tuple[Module, str, Array]] = []

    def take(self) -> None:
        """Copies all buffers."""
        names = ((module, name) for module in self._modules for name in module._buffers)
        self._copies = [(module, name, getattr(module, name).copy()) for module, name in names]

    def put_back(self) -> None:
        """Makes the buffers what they were when they were copied."""
        for module, name, array in self._copies:
            getattr(module, name)[...] = array
