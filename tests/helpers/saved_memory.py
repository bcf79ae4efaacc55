"""The memory that tensors keep for their backward pass, found by walking the tape itself.

A tape node holds the arrays that its vjps close over. All of them are visited, and each block of
memory counts once.
"""

import gc
from collections.abc import Iterable, Iterator
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.arrays.meta import owner
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import TapeNode
from nnmpi.nn.parameter import Parameter


def saved_memory(results: Iterable[Tensor], until: Iterable[Tensor] = ()) -> dict[int, Array]:
    """Returns the blocks of memory, by id, that `results` keep for a backward pass down to the
    tensors `until`; the memory of parameters is left out."""
    # nodes of `until` count as seen, so the walk ends there
    seen, memory_of, weights = {id(t.node) for t in until}, dict[int, Array](), set[int]()
    nodes = [t.node for t in results if t.node is not None]
    while nodes:
        node = nodes.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        for parent in node.parents:
            if isinstance(parent, TapeNode):
                nodes.append(parent)
            elif isinstance(parent, Parameter):
                weights.add(id(owner(parent._array)))
        for array in _arrays([node.vjps, node.prepare], set()):
            memory = owner(array)
            memory_of[id(memory)] = memory
    return {key: array for key, array in memory_of.items() if key not in weights}


def nbytes(arrays: Iterable[Array]) -> int:
    """Returns the total size of the arrays in bytes."""
    return sum(int(array.nbytes) for array in arrays)


def _arrays(things: Iterable[Any], seen: set[int]) -> Iterator[Array]:
    """Yields the arrays that objects hold: in closures, bound methods, containers, and objects of
    kernels."""
    for thing in things:
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if backend.is_array(thing):
            yield thing
        elif isinstance(thing, Tensor):
            yield thing._array
        elif isinstance(thing, FunctionType):  # not by get_referents, which has its globals
            yield from _arrays([thing.__closure__, thing.__defaults__, thing.__kwdefaults__], seen)
        elif isinstance(thing, HOLDERS) or type(thing).__module__.startswith(KERNELS):
            yield from _arrays(gc.get_referents(thing), seen)


KERNELS = "nnmpi.arrays.", "nnmpi.addons."
HOLDERS = (CellType, MethodType, partial, tuple, list, set, dict)
"""Types whose contents `gc.get_referents` lists."""
