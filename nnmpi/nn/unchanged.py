"""unchanged: a model that is tried out, and is afterwards as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

from nnmpi.nn.module import REGISTRIES, Module


@contextmanager
def unchanged(module: Module) -> Iterator[None]:
    """Within it buffers are copies, and parameters may move: then all is as before.

    So are modes and other attributes, but for what is inside these.
    """
    modules = list(dict.fromkeys(module.modules()))
    attributes = [vars(m) | {name: dict(vars(m)[name]) for name in REGISTRIES} for m in modules]
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
        for m, before in zip(modules, attributes, strict=True):
            vars(m).clear()
            vars(m).update(before)
