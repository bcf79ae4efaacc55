"""Formats the operations of a step as text, for `simulate layout --list`."""

from collections import defaultdict
from collections.abc import Iterator
from textwrap import fill

from nnmpi import addons
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.rank_names import ranks_text
from nnmpi.parallel.step_list.chain import Chain
from nnmpi.parallel.step_list.op import as_text
from nnmpi.parallel.step_list.proof import prove_lists
from nnmpi.parallel.step_list.step import StepList, list_of_batch

WIDTH = 100


def lines(a: Arrangement) -> Iterator[str]:
    """Yields lines for `simulate layout --list`: for each group of ranks with equal lists, its
    units (parts of the model, usually layers) and its operations in a step. Raises ValueError for a
    layout whose step is not run as a list."""
    for reason in _others(a):
        raise ValueError(f"--list: a step with {reason} is no list yet: leave it out")
    prove_lists(a)
    for ranks, step in _alike(a):
        yield f"list of ranks {ranks_text(tuple(ranks))}, proved:"
        yield from _units(a, step.chain)
        yield fill(as_text(step.ops), WIDTH, initial_indent="  ", subsequent_indent="  ")


def _alike(a: Arrangement) -> Iterator[tuple[list[int], StepList]]:
    """Yields (ranks, list) for each group of ranks with equal lists: those that differ along dp,
    unless the strategy makes its own lists."""
    alike, lists = defaultdict[tuple[int, ...], list[int]](list), a.strategy.lists
    for rank in range(a.mesh.size):
        at = a.mesh.coordinates(rank)
        alike[at["tp"], at["pp"], *([at["dp"]] if lists else [])].append(rank)
    for _, ranks in sorted(alike.items()):
        yield ranks, list_of_batch(a, ranks[0])


def _others(a: Arrangement) -> Iterator[str]:
    """Yields those options of a layout because of which its steps are not run as lists of
    operations."""
    if a.strategy.name not in ("replicas", "pipeline", "reproducible"):
        yield f"the strategy {a.strategy.name}"
    if addons.chosen("twins", a.config):
        yield "--verify, which makes it twice,"


def _units(a: Arrangement, chain: Chain) -> Iterator[str]:
    for u, unit in enumerate(chain.units):
        paths = [a.graph.variables[v].path for v in sorted(unit.variables)]
        span = " to ".join(dict.fromkeys((paths[0], paths[-1]))) if paths else "no parameters"
        numbers = ", ".join(map(str, unit.buckets)) or "none"
        yield f"  unit {u}: {span}, buckets: {numbers}"
