"""trace(model, zeros, dtype): the graph of a model, from passes of zeros.

The passes run on memory of zeros, and draw no weights. One has 2 samples and runs in evaluation
mode, others have 3 and 6 and run in training mode. Lengths that differ are of samples. Where more
differs, or a `forward` reads numbers of a tensor, on which its control flow may depend, the module
with that `forward` is taken whole, and a note says why.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from nnmpi.autograd import Tensor
from nnmpi.autograd.ops.norm import Moments
from nnmpi.autograd.recording import recording
from nnmpi.backend import Array
from nnmpi.nn.graph import Graph, rebuilt
from nnmpi.nn.graph_recorder import STEPS, WRITES, ConflictError, GraphRecorder, tell
from nnmpi.nn.merging import FEW, MORE, MOST, Passed, merged
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter, inverse
from nnmpi.nn.passes import Pass, current_pass
from nnmpi.nn.sequential import Sequential
from nnmpi.nn.unchanged import unchanged


def trace(
    model: Module,
    zeros: Callable[[int], tuple[tuple[Any, ...], Mapping[str, Any]]],
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
            with _borrowed(model, dtype):
                few = _pass(model, zeros(FEW), whole, False, check)
                more, most = (
                    _pass(model, zeros(n), whole, True, check=None, loss=_with(loss, n))
                    for n in (MORE, MOST)
                )
            return merged(few, more, most, whole)
        except ConflictError as found:
            whole[found.path] = found.note


def _with(loss: Callable[[Any, int], Tensor] | None, n: int) -> Callable[[Any], Tensor] | None:
    return None if loss is None else lambda outputs: loss(outputs, n)


def _pass(
    model: Module,
    inputs: tuple[tuple[Any, ...], Mapping[str, Any]],
    whole: Mapping[str, str],
    training: bool,
    check: Callable[[Any], object] | None = None,
    loss: Callable[[Any], Tensor] | None = None,
) -> Passed:
    """One pass over the model."""
    model.train(training)
    recorder = GraphRecorder(model, whole)
    args, named = rebuilt(inputs, lambda x: recorder.enter(x) if isinstance(x, Tensor) else x)
    arguments = rebuilt((args, named), recorder._argument)
    modules = {id(m): m for m in model.modules()}.values()
    token, before = recording.set(recorder), current_pass.set(_Watched(0, None, UNTRACKED))
    own = {m: vars(m)["forward"] for m in modules if "forward" in vars(m)}
    for m in modules:
        object.__setattr__(m, "forward", partial(recorder.forward, m, m.forward))
        _forget_steps(m)
    try:
        with np.errstate(all="ignore"):
            outputs = model(*args, **named)
            found = recorder.close(outputs, loss)
    finally:
        for m in modules:
            object.__delattr__(m, "forward")
            vars(m).update({"forward": own[m]} if m in own else {})
            _forget_steps(m)
        recording.reset(token)
        current_pass.reset(before)
    if check is not None:
        check(outputs)
    return Passed(
        found._replace(outputs=rebuilt(outputs, recorder._argument)), arguments, recorder.variables
    )


def _forget_steps(module: Module) -> None:
    """A Sequential keeps the `forward` of its layers: it looks them up again."""
    if isinstance(module, Sequential):
        object.__setattr__(module, "_steps", None)


class _Untracked:
    """BatchStats that leave the running statistics as they are."""

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        return local

    def sum(self, sums: Array) -> Array:
        return sums


UNTRACKED = _Untracked()


class _Watched(Pass):
    """A pass whose step and samples `forward` of a module that is looked into does not read."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("step", "samples"):
            tell(STEPS)
        return super().__getattribute__(name)


class Zeros:
    """The store of a parameter that is not drawn. The system gives memory only to what is written,
    and zeros are read."""

    rotates = False

    def __init__(self, p: Parameter, dtype: np.dtype[Any]) -> None:
        memory = np.zeros([p.shape[k] for k in p.layout], dtype)
        self._zeros, self.dtype = memory.transpose(inverse(p.layout)), dtype

    def value(self, i: int) -> Array:
        return self._zeros

    def slot(self, i: int) -> Array:
        return self._zeros

    def refresh(self, i: int, made: int) -> None:
        pass

    def written(self, i: int) -> None:
        tell(WRITES)


@contextmanager
def _borrowed(model: Module, dtype: Any) -> Iterator[None]:
    """Parameters are zeros of this type, and buffers are copies; then all is as before."""
    with unchanged(model):
        for p in model.parameters():
            p.move(Zeros(p, np.dtype(dtype)), 0)
        yield
