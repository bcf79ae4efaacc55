"""unchanged: a model that is tried out, and is afterwards as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

from nnmpi.nn.module import Module


@contextmanager
def unchanged(module: Module) -> Iterator[None]:
    """Within it buffers are copies, and parameters may move: then all is as before, modes too."""
    modules = list(dict.fromkeys(module.modules()))
    modes = [m.training for m in modules]
    parameters = [(p, p.store, p.index, p.has_grad) for p in module.parameters()]
    buffers = [(m, name, getattr(m, name)) for m in modules for name in m._buffers]
    try:
        for m, name, array in buffers:
            setattr(m, name, array.copy())
        yield
    finally:
        for p, store, index, has_grad in parameters:
            if store is None:
                p.discard()
            else:
                p.move(store, index)
                p.has_grad = has_grad
        for m, name, array in buffers:
            setattr(m, name, array)
        for m, mode in zip(modules, modes, strict=True):
            object.__setattr__(m, "training", mode)
