"""What a rank holds between steps, in bytes, as the store that was built on paper says."""

from collections.abc import Callable, Mapping

from nnmpi.collectives.step import chunk_start
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.rank_model import Memory
from nnmpi.parallel.arrangement.state_bytes import bytes_of_other, running_sums
from nnmpi.parallel.paper.rank import is_buildable, step


def memory(a: Arrangement, rank: int, batch: int) -> Memory:
    """What a rank holds between two steps over batches of so many samples."""
    sizes = {True: 0, False: 0}
    for held in a.model_on(rank).others:
        sizes[a.graph.variables[held.variable].is_parameter] += bytes_of_other(a, held)
    is_built = is_buildable(a, rank)
    of_trained = step(a, rank, batch).held if is_built else NOT_BUILT[a.store.name](a, rank)
    if a.residences is not None and (model := a.residences.model) is not None:
        of_trained = of_trained._replace(
            parameters=round(model.window),
            gradients=0 if model.gradients else of_trained.gradients,
            optimizer=0,
        )
    return of_trained._replace(
        parameters=of_trained.parameters + sizes[True], buffers=sizes[False]
    )


def _versions(a: Arrangement, rank: int) -> Memory:
    """Stage s of p has values for each micro-batch in flight, which are p - s."""
    older = a.mesh.axes["pp"] - a.mesh.coordinates(rank)["pp"] - 1
    held, whole = a.model_on(rank), _values(a, rank)
    n = held.length - held.spans[0][0] if held.trained else 0
    return Memory(whole, whole, running_sums(a, n), slots=older * n * a.dtype.itemsize)


def _served(a: Arrangement, rank: int) -> Memory:
    """A worker has no running sums; a server has those of its part of the gradients."""
    whole, n, k = _values(a, rank), a.model_on(rank).length, rank - a.mesh.size
    if k < 0:
        return Memory(whole, whole, 0)
    part = chunk_start(n, a.servers, k + 1) - chunk_start(n, a.servers, k)
    return Memory(whole, part * a.dtype.itemsize, running_sums(a, part))


def _values(a: Arrangement, rank: int) -> int:
    return sum(held.size for held in a.model_on(rank).trained) * a.dtype.itemsize


NOT_BUILT: Mapping[str, Callable[[Arrangement, int], Memory]] = {
    "versions": _versions,
    "served": _served,
}
"""Memory of trained parameters in stores of ranks that are not built on paper, by their kind."""
