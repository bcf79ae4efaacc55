"""Which layers this rank has: the cut of a model into stages, and what is left of other stages."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NoReturn

import numpy as np

from nnmpi.backend import Array, Backend
from nnmpi.config import Config
from nnmpi.data import Inputs
from nnmpi.nn import Module, Sequential
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.model_part import ModelPart
from nnmpi.parallel.pipeline import partition
from nnmpi.parallel.pipeline.partition import Cut, Unit
from nnmpi.parallel.pipeline.profile import Cost, profile, stage_costs
from nnmpi.schedules import SCHEDULES, programs
from nnmpi.sim import pipeline as sim

LONG = 256
"""Batches of an epoch that are simulated: more would change little."""


def stages_of(config: Config) -> int:
    """The stages of all ranks along pp."""
    return config.pp * (config.virtual_stages if SCHEDULES[config.schedule].virtual else 1)


def split(
    config: Config,
    layout: Layout,
    model: Module,
    gather: Callable[[int], Inputs],
    on: Backend,
    batches: int,
) -> ModelPart:
    """Cuts the model into stages; every rank calls it.

    `gather(n)` returns n samples; an epoch has so many batches.

    Unless the cut is given, the first rank measures the layers. The parameters of other ranks'
    stages lose their memory.
    """
    count = stages_of(config)
    if count == 1:
        return ModelPart.whole(model)
    layers, given = all_or_none(layout.all, lambda: _units(config, model, count))
    costs = _measured(config, layout, layers, gather, on)
    chosen = given or all_or_none(layout.all, lambda: _best_cut(layers, count, costs))
    own = range(layout.axis["pp"].rank, count, config.pp)
    edges = partition.bounds(chosen, len(layers))
    all_or_none(layout.all, lambda: _refuse_shared_buffers(layers, edges))
    stages = {s: Sequential(*chain(*(u.modules for u in layers[slice(*edges[s])]))) for s in own}
    ranks = _ranks(layers, edges, config.pp)
    _release_others(ranks, layout.axis["pp"].rank)
    tied = [(p, where) for p, where in ranks.items() if len(where) > 1 and p.requires_grad]
    facts = _facts(config, layers, chosen, costs, batches)
    return ModelPart(model, stages, count, _held(model, stages), tied, facts)


def _units(config: Config, model: Module, count: int) -> tuple[list[Unit], Cut | None]:
    """The units, and the cut if it is given: what is wrong with it is said before measuring."""
    layers = partition.units(model)
    if config.cut is None:
        return layers, None
    return layers, partition.parse_cut(config.cut, layers, count)


def _measured(
    config: Config,
    layout: Layout,
    layers: Sequence[Unit],
    gather: Callable[[int], Inputs],
    on: Backend,
) -> list[Cost]:
    """The costs of the units on a micro-batch, the same on all ranks.

    They are measured on the first rank, and on those that it divides channels with.
    """
    samples = -(-config.batch_size // (config.micro_batches * layout.axis["dp"].size))
    rows = np.zeros((len(layers), len(Cost._fields)))

    def measure() -> None:
        if layout.axis["dp"].rank == layout.axis["pp"].rank == 0:
            x, tp = gather(max(samples, 2)), layout.axis["tp"]
            rows[:] = profile(layers, x, on, tp=tp, dtype=config.dtype)

    all_or_none(layout.all, measure)
    layout.all.broadcast(rows)
    return [Cost(*row) for row in rows.tolist()]


def _best_cut(layers: Sequence[Unit], count: int, costs: Sequence[Cost]) -> Cut:
    return partition.cut(
        [cost.seconds for cost in costs],
        count,
        [unit.is_trained for unit in layers],
        [cost.parameter_bytes + cost.activation_bytes for cost in costs],
    )


def _refuse_shared_buffers(layers: Sequence[Unit], edges: Sequence[tuple[int, int]]) -> None:
    """Raises ValueError if a module with buffers is in two stages.

    Running statistics would be updated in another order than on one rank, or in two copies.
    """
    found: dict[Module, int] = {}
    for s, (start, end) in enumerate(edges):
        for module in chain(*(unit.modules for unit in layers[start:end])):
            for m in module.modules():
                if any(True for _ in m.named_buffers()) and found.setdefault(m, s) != s:
                    raise ValueError(
                        f"{m.path} ({type(m).__name__}) is used in stages {found[m]} and {s}, and "
                        "its buffers cannot be in both: use a layer of its own in each place, or a "
                        "--cut that keeps them in one stage"
                    )


def _held(model: Module, stages: Mapping[int, Module]) -> Callable[[str], bool]:
    own = {id(tensor) for stage in stages.values() for _, tensor in stage.tensors()}
    return {place.path for place, tensor in model.tensors() if id(tensor) in own}.__contains__


def _facts(
    config: Config, layers: Sequence[Unit], cut: Cut, costs: Sequence[Cost], batches: int
) -> dict[str, Any]:
    """What the start event says of the cut, and what the simulator predicts for it."""
    stages = stage_costs(costs, cut)
    seconds = [cost.seconds for cost in stages]
    found = _simulated(config, stages, batches)
    edges = partition.bounds(cut, len(layers))
    return {
        "cut": partition.as_text(cut, layers),
        "predicted_bubble": round(found.bubble, 4),
        "stages": [
            {
                "rank": s % config.pp,
                "layers": sum(len(unit.modules) for unit in layers[a:b]),
                "time": round(seconds[s] / sum(seconds), 4),
                "parameter_bytes": int(cost.parameter_bytes),
                "activation_bytes": int(cost.activation_bytes),
            }
            for s, ((a, b), cost) in enumerate(zip(edges, stages, strict=True))
        ],
        "peak_activation_bytes": [round(nbytes) for nbytes in found.memory],
    }


def _simulated(config: Config, stages: Sequence[Cost], batches: int) -> sim.Simulation:
    """From an empty pipeline to an empty one: a step, or an epoch of steps that follow each other.

    Messages cost nothing.
    """
    times = [sim.StageTimes(f, i + w, i, w) for f, i, w, *_ in stages]
    schedule = SCHEDULES[config.schedule]
    micro_batches = min(config.micro_batches, config.batch_size)  # none is empty
    plan = programs(
        schedule,
        config.pp,
        min(batches, LONG) if schedule.update_each else micro_batches,
        len(stages) // config.pp,
        config.recompute,
    )
    whole, inputs = zip(*((c.activation_bytes, c.input_bytes) for c in stages), strict=True)
    return sim.simulate(plan, sim.Costs(times), whole, inputs=inputs)


def _ranks(
    layers: Sequence[Unit], edges: Sequence[tuple[int, int]], pp: int
) -> dict[Parameter, tuple[int, ...]]:
    """Each parameter, and the ranks along pp whose stages use it."""
    found: dict[Parameter, set[int]] = {}
    for s, (start, end) in enumerate(edges):
        for module in chain(*(unit.modules for unit in layers[start:end])):
            for p in module.parameters():
                found.setdefault(p, set()).add(s % pp)
    return {p: tuple(sorted(ranks)) for p, ranks in found.items()}


def _release_others(ranks: Mapping[Parameter, tuple[int, ...]], own: int) -> None:
    """Gives back the memory of parameters that this rank does not use."""
    for p, where in ranks.items():
        if own not in where:
            p.move(OnAnotherRank(p.place.path, where[0]), 0)


class OnAnotherRank:
    """The store of a parameter of another stage: it has no memory here."""

    def __init__(self, path: str, rank: int) -> None:
        self._where = f"{path} is in a stage of rank {rank} along pp, and not here"

    def value(self, i: int) -> Array:
        self._refuse()

    def slot(self, i: int) -> Array:
        self._refuse()

    def refresh(self, i: int, made: int) -> None:
        self._refuse()

    def written(self, i: int) -> None:
        self._refuse()

    @property
    def dtype(self) -> np.dtype[Any]:
        self._refuse()

    @property
    def rotates(self) -> bool:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ValueError(f"{self._where}: read it there, or from a file of --save")
