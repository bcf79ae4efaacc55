"""Takes a rank's stages out of a model, and frees the parameters of other stages."""

from collections.abc import Mapping
from typing import Any, NoReturn

from nnmpi.nn import Module
from nnmpi.nn.recompute import recompute
from nnmpi.nn.segment import segment
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.model.parts import ModelPart, boundaries_of


def own_stages(
    model: Module, arrangement: Arrangement, rank: int, facts: Mapping[str, Any]
) -> ModelPart:
    """Returns the part of a model that a rank has; parameters of other ranks lose their memory."""
    division, graph, owned = arrangement.division, arrangement.graph, arrangement.sharding.branches
    positions = arrangement.own_positions(rank)
    recompute(model, graph, arrangement.config.recompute)
    if len(division.stages) == 1 and not owned.variables:
        return ModelPart.whole(model)._replace(positions=positions)
    at = arrangement.mesh.coordinates(rank)
    parts_here = division.of_rank(at["pp"])
    stages = {0: model}
    if len(division.stages) > 1:
        stages = {
            s: segment(model, graph, part.nodes, part.variables) for s, part in parts_here.items()
        }
    parameters, held = dict(model.named_parameters()), set[str]()
    for v, ranks in division.ranks().items():
        variable, has = graph.variables[v], owned.has(v, at["tp"])
        if has and at["pp"] in ranks:
            held.update(variable.names)
        elif variable.is_parameter:
            where = f"stage of rank {ranks[0]} along pp"
            where = where if has else f"branch of rank {owned.variables[v]} along tp"
            parameters[variable.path].move(OnAnotherRank(variable.path, where), 0)
    return ModelPart(
        model,
        stages,
        held.__contains__,
        [(parameters[path], ranks) for path, ranks in arrangement.tied.items()],
        facts,
        boundaries_of(arrangement, at),
        positions,
    )


class OnAnotherRank:
    """The store of a parameter that another rank has; it has no memory on this rank, and every
    access raises ValueError."""

    def __init__(self, path: str, where: str) -> None:
        self._where = f"{path} is in a {where}, not on this rank"

    def _refuse(self, *arguments: int) -> NoReturn:
        raise ValueError(f"{self._where}: read it there, or from a file written by --save")

    value = grad_memory = refresh = written = _refuse
    dtype: Any = property(_refuse)
    rotates: Any = property(_refuse)
