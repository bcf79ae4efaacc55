"""Arranger: makes the arrangements of many layouts of one model on one cluster, and shares results
between layouts.

sharding   cached by (tp, sequence parallelism, --layout), and by cp
division   cached by (the rank along pp of each stage, whether these ranks are on several nodes)"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from nnmpi.addons.planning.candidate import Candidate
from nnmpi.addons.planning.stage_costs import division_on_paper
from nnmpi.addons.planning.unit_times import ModelTimes
from nnmpi.nn.graph import Graph
from nnmpi.nn.recompute import recomputed_with
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrange import arrange, strategy_of
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.division import Division
from nnmpi.parallel.arrangement.rank_model import RankModel
from nnmpi.parallel.arrangement.store_kinds import STORE_KINDS
from nnmpi.parallel.layout import mesh_of
from nnmpi.parallel.mesh import AXES, Mesh
from nnmpi.parallel.tensor.constraints import WayPrice
from nnmpi.parallel.tensor.sharding import Sharding
from nnmpi.schedules.find import find
from nnmpi.schedules.pipeline import SCHEDULES
from nnmpi.schedules.placement import Place

K = TypeVar("K")
T = TypeVar("T")

FULL = 8
"""The number of micro-batches (or of stages, if that is larger) for which a model is cut. The best
cut hardly depends on that number, so layouts can share the cut."""


class Arranger:
    """Makes the arrangement of any layout of one model on one cluster. Results are cached; for a
    layout that is impossible, every call raises ValueError.

    check        a function of (config, ranks): raises ValueError if the config is impossible
    sharding_of  a function of (config, prices of ways or None)"""

    def __init__(
        self,
        config: Config,
        cluster: Cluster,
        graph: Graph,
        model: ModelTimes,
        check: Callable[[Config, int], None],
        sharding_of: Callable[[Config, WayPrice | None], Sharding],
    ) -> None:
        self.plain, self.cluster, self.graph = config, cluster, graph
        self._model, self._check, self._sharding_of = model, check, sharding_of
        self._shardings = dict[tuple[Any, ...], Sharding | ValueError]()
        self._meshes = dict[tuple[int, ...], Mesh]()
        self._division_keys = dict[tuple[tuple[int, ...], str], tuple[Place, bool]]()
        self._divisions = dict[tuple[Place, bool], Division | ValueError]()

    @cached_property
    def has_blocks(self) -> bool:
        """True if the model has repeated blocks, as --recompute block needs."""
        return any(recomputed_with(node, "block") for node in self.graph.nodes)

    def config(self, candidate: Candidate) -> Config:
        """Returns the run's config with the options of a layout."""
        return replace(self.plain, **candidate.options)

    def sharding(self, candidate: Candidate) -> Sharding:
        """How a layout divides layers along tp, and sequences along cp: cached apart, since neither
        depends on the other."""
        in_parts, ways = candidate.sequence_parallel, candidate.layout or None
        layers = self._cut(tp=candidate.tp, sequence_parallel=in_parts, layout=ways)
        return layers._replace(positions=self._cut(cp=candidate.cp).positions)

    def _cut(self, **options: Any) -> Sharding:
        """Returns, from a cache, the Sharding under `options`: those that divide layers along tp,
        or the one that divides sequences along cp."""

        def made() -> Sharding:
            return self._sharding_of(replace(self.plain, **options), None)

        return _cached(self._shardings, tuple(options.items()), made)

    def fastest_ways(self, candidate: Candidate, price: WayPrice) -> Sharding:
        """Returns how layers are divided along tp, each in the way of the lowest `price`."""
        return self._sharding_of(self.config(candidate), price)

    def division(self, candidate: Candidate) -> Division:
        """Returns how a layout divides the model into pipeline stages."""
        key = self.division_key(candidate)
        return _cached(self._divisions, key, lambda: self._divided(self.config(candidate)))

    def division_key(self, candidate: Candidate) -> tuple[Place, bool]:
        """A cache key: layouts with equal keys have the same stages. It has the rank along pp of
        each stage, and whether these ranks are on one node."""
        key = candidate.shape, candidate.schedule
        if key not in self._division_keys:
            schedule = find(candidate.schedule)
            stages = schedule.stages_a_rank(self.plain.virtual_stages)
            is_near = self.cluster.on_one_node(self.mesh(candidate).group(0, "pp"))
            self._division_keys[key] = schedule.place(candidate.pp, stages), is_near
        return self._division_keys[key]

    def mesh(self, candidate: Candidate) -> Mesh:
        """Returns the mesh of a layout: the coordinates of each rank along dp, cp, pp and tp."""
        if candidate.shape not in self._meshes:
            sizes = dict(zip((axis.name for axis in AXES), candidate.shape, strict=True))
            self._meshes[candidate.shape] = Mesh.filled(self.cluster.size, sizes, self.plain.order)
        return self._meshes[candidate.shape]

    def _divided(self, config: Config) -> Division:
        machine, cut_for = self._model.machine, replace(config, recompute="none")
        if config.schedule in SCHEDULES:  # a user's may allow no other number of micro-batches
            full = min(max(config.pp, FULL), config.batch_size)
            cut_for = replace(cut_for, micro_batches=full)
        is_near = self.cluster.on_one_node(mesh_of(config, self.cluster.size).group(0, "pp"))
        link = machine.near if is_near else machine.far
        return division_on_paper(self._model, cut_for, link)

    def refusal(self, candidate: Candidate) -> str:
        """Returns why the model cannot be divided as this layout says, or "". Layouts with the same
        options for dividing the model get the same message."""
        try:
            self.sharding(candidate)
            self.division(candidate)
        except ValueError as error:
            return str(error)
        return ""

    def arranged(self, candidate: Candidate) -> Arrangement:
        """Returns the arrangement of a layout."""
        config = self.config(candidate)
        self._check(config, self.cluster.size)
        return self._arrange(config, self.sharding(candidate), self.division(candidate))

    def arranged_by(self, config: Config) -> Arrangement:
        """Returns the arrangement that a config asks for."""
        self._check(config, self.cluster.size)
        filled = replace(config, dp=mesh_of(config, self.cluster.size).axes["dp"])
        return self._arrange(config, self._sharding_of(filled, None), self._divided(filled))

    def _arrange(self, config: Config, sharding: Sharding, division: Division) -> Arrangement:
        return arrange(config, self.cluster, self.graph, sharding, division)

    def without_parameters(self, candidate: Candidate) -> Arrangement:
        """Returns a layout's arrangement without parameters, enough for exchanges within passes."""
        config = self.config(candidate)
        sharding = self.sharding(candidate)
        division = self.division(candidate)
        mesh, stages = mesh_of(config, self.cluster.size), range(len(division.stages))
        rank_models = {(candidate.pp - 1, candidate.tp - 1): RankModel(tuple(stages), (), ())}
        return Arrangement(
            *(config, self.cluster, self.graph, sharding, division, mesh, 0, strategy_of(config)),
            *(rank_models, STORE_KINDS["local"], "ring", (), {}),
        )


def _cached(known: dict[K, T | ValueError], key: K, make: Callable[[], T]) -> T:
    """Returns known[key], made on the first call; a ValueError of it is raised again each time."""
    if key not in known:
        try:
            known[key] = make()
        except ValueError as error:
            known[key] = ValueError(str(error))
    value = known[key]
    if isinstance(value, ValueError):
        raise ValueError(str(value))
    return value
