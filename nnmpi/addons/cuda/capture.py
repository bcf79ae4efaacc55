"""Captures CUDA graphs: a stream, a pool for their arrays, and a context after which modules are as
before."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, Backend
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.comm import Comm
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.step.recorded_wires import wires
from nnmpi.parallel.wire import StagedComm, Wire, wire_of


class Graph(NamedTuple):
    """A captured graph, and the communicators of a library whose calls are in it. Their end would
    wait for that of the graph: a tuple lets go the last of its elements first."""

    libraries: Collection[Any]
    graph: Any

    def launch(self) -> None:
        """Launches the graph in the current stream."""
        self.graph.launch()


class Capture:
    """A stream that captures graphs, and the pool in which their arrays lie, so that they stay
    where they are while this object exists.

    libraries   the communicators of a library whose calls have been captured
    """

    def __init__(self, on: Backend) -> None:
        self._cuda = on.xp.cuda
        self._stream, self._pool = self._cuda.Stream(non_blocking=True), self._cuda.MemoryPool()
        self.libraries = set[Any]()

    @contextmanager
    def graph(self) -> Iterator[list[Graph]]:
        """A context that captures kernels instead of running them, and what ranks exchange by a
        library in the order of kernels; its list gets the graph."""
        graphs, runtime = list[Graph](), self._cuda.runtime
        with self._stream, self._cuda.using_allocator(self._pool.malloc), wires(self._wire):
            # relaxed: the pool may ask for memory meanwhile
            self._stream.begin_capture(runtime.streamCaptureModeRelaxed)
            try:
                yield graphs
            except BaseException:
                with suppress(RuntimeError):  # of a capture that is invalid
                    self._stream.end_capture()
                raise
            graphs.append(Graph({*self.libraries}, self._stream.end_capture()))

    def _wire(self, comm: Comm, array: Array) -> "_InGraph":
        wire = _InGraph(wire_of(comm, backend.of(array)))
        self.libraries |= wire.libraries
        return wire


class _InGraph:
    """A wire within a pass that is captured: has those methods that work without the host."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self.libraries = wire, libraries_of([wire])

    def __getattr__(self, name: str) -> Any:
        if self.libraries and name in ("all_reduce", "all_gather", "start_reduce_scatter"):
            return getattr(self._wire, name)
        raise NumbersReadError(f"a CUDA graph cannot contain {name} between ranks through the host")


def libraries_of(wires: Iterable[Wire]) -> set[Any]:
    """Returns the communicators of a library by which wires carry out sums and gathers."""
    staged = (wire for wire in wires if isinstance(wire, StagedComm))
    return {wire.library for wire in staged if wire.library is not None}


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
