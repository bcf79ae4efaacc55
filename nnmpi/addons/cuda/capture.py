"""Captures CUDA graphs: a stream, a pool for their arrays, and a context after which modules are as
before."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from nnmpi.arrays.backend import Backend
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter


class Lasting(NamedTuple):
    """A graph, and the communicators of a library whose calls are in it. Their end would wait for
    that of the graph: a tuple lets go the last of its elements first."""

    libraries: Collection[Any]
    graph: Any


class Capture:
    """A stream that captures graphs, and the pool in which their arrays lie, so that they stay
    where they are while this object exists."""

    def __init__(self, on: Backend) -> None:
        self._cuda = on.xp.cuda
        self._stream, self._pool = self._cuda.Stream(non_blocking=True), self._cuda.MemoryPool()

    @contextmanager
    def graph(self) -> Iterator[list[Any]]:
        """A context that captures kernels instead of running them; its list gets the graph."""
        graphs, runtime = list[Any](), self._cuda.runtime
        with self._stream, self._cuda.using_allocator(self._pool.malloc):
            # relaxed: the pool may ask for memory meanwhile
            self._stream.begin_capture(runtime.streamCaptureModeRelaxed)
            try:
                yield graphs
            except BaseException:
                with suppress(RuntimeError):  # of a capture that is invalid
                    self._stream.end_capture()
                raise
            graphs.append(self._stream.end_capture())


@contextmanager
def restored(modules: Sequence[Module], parameters: Sequence[Parameter]) -> Iterator[None]:
    """A context in which a computation of modules and parameters is captured. Afterwards it is as
    before which parameters have a gradient, and all attributes of modules are. Raises
    NumbersReadError if the computation has set one."""
    attributes = [dict(vars(m)) for m in modules]
    with_gradient = {p: p.has_grad for p in parameters}
    try:
        yield
        for m, saved in zip(modules, attributes, strict=True):
            if vars(m).keys() != saved.keys() or any(vars(m)[n] is not v for n, v in saved.items()):
                raise NumbersReadError("forward sets an attribute")
    finally:
        for p, has_grad in with_gradient.items():
            p.has_grad = has_grad
        for m, saved in zip(modules, attributes, strict=True):
            vars(m).clear()
            vars(m).update(saved)
