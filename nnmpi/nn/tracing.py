"""trace(model, zeros, dtype): the graph of a model, from passes of zeros.

The passes run on memory of zeros, and draw no weights. One has 2 samples and runs in evaluation
mode, others have 3 and 6 and run in training mode. Lengths that differ are of samples. Where more
differs, or a `forward` reads numbers of a tensor, on which its control flow may depend, the module
with that `forward` is taken whole, and a note says why.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import recording
from nnmpi.nn.graph import Arguments, Graph
from nnmpi.nn.graph_recorder import STEPS, WRITES, ConflictError, GraphRecorder, tell
from nnmpi.nn.merging import FEW, MORE, MOST, merged
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter, inverse
from nnmpi.nn.passes import UNTRACKED, Pass, current_pass
from nnmpi.nn.sequential import forget_steps
from nnmpi.nn.single_store import SingleStore
from nnmpi.nn.unchanged import unchanged


def trace(
    model: Module,
    zeros: Callable[[int], Arguments],
    dtype: Any,
    check: Callable[[Any], object] = lambda outputs: None,
    loss: Callable[[Any, int], Tensor] | None = None,
) -> Graph:
    """The graph of a model that is called with zeros(n), arguments for n samples.

    `check` gets what the model returns for FEW samples, and `loss` what it returns for n, to find
    what the loss keeps. Raises what the model, `check` or `loss` raise. The model is left as it
    was.
    """
    whole: dict[str, str] = {}
    while True:
        try:
            few = _pass(model, zeros, FEW, dtype, whole)
            check(few.returned)
            more = _pass(model, zeros, MORE, dtype, whole, training=True, loss=loss)
            most = _pass(model, zeros, MOST, dtype, whole, training=True, loss=loss)
            return merged(few, more, most, whole)
        except ConflictError as found:
            whole[found.path] = found.note


def _pass(
    model: Module,
    zeros: Callable[[int], Arguments],
    n: int,
    dtype: Any,
    whole: Mapping[str, str],
    training: bool = False,
    loss: Callable[[Any, int], Tensor] | None = None,
) -> GraphRecorder:
    """What one pass over the model does with n samples."""
    with unchanged(model), np.errstate(all="ignore"):
        for p in model.parameters():
            p.move(Zeros(p, np.dtype(dtype)), 0)
        model.train(training)
        recorder = GraphRecorder(model, whole)
        for m in {id(m): m for m in model.modules()}.values():
            object.__setattr__(m, "forward", partial(recorder.forward, m, m.forward))
        forget_steps(model)
        tokens = recording.set(recorder), current_pass.set(_Watched(0, None, UNTRACKED))
        try:
            recorder.run(model, zeros(n), n, loss)
        finally:
            recording.reset(tokens[0])
            current_pass.reset(tokens[1])
    return recorder


class _Watched(Pass):
    """A pass whose step and samples `forward` of a module that is looked into does not read."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("step", "samples"):
            tell(STEPS)
        return super().__getattribute__(name)


class Zeros(SingleStore):
    """The store of a parameter that is not drawn. The system gives memory only to what is written,
    and zeros are read."""

    def __init__(self, p: Parameter, dtype: np.dtype[Any]) -> None:
        memory = np.zeros([p.shape[k] for k in p.layout], dtype)
        super().__init__(memory.transpose(inverse(p.layout)))

    def written(self, i: int) -> None:
        tell(WRITES)
