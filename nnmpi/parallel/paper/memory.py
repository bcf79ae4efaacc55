"""What a rank holds between steps, in bytes, as the store that was built on paper says."""

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.rank_model import Memory
from nnmpi.parallel.arrangement.state_bytes import bytes_of_other
from nnmpi.parallel.paper.rank import step


def memory(a: Arrangement, rank: int, batch: int) -> Memory:
    """What a rank holds between two steps over batches of so many samples."""
    sizes = {True: 0, False: 0}
    for held in a.model_on(rank).others:
        sizes[a.graph.variables[held.variable].is_parameter] += bytes_of_other(a, held)
    of_trained = step(a, rank, batch).held
    if a.residences is not None and (model := a.residences.model) is not None:
        of_trained = of_trained._replace(
            parameters=round(model.window),
            gradients=0 if model.gradients else of_trained.gradients,
            optimizer=0,
        )
    return of_trained._replace(parameters=of_trained.parameters + sizes[True], buffers=sizes[False])
