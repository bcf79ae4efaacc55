"""Formats the operations of a step as text, for `simulate layout --list`."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from textwrap import fill

from nnmpi.addons.planning.paper.recording import passes
from nnmpi.addons.planning.rank_lists import list_of_batch
from nnmpi.addons.proof.proof import ProvedStep, has_known_sums, prove_sums
from nnmpi.addons.proof.text import typed_lines
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.rank_names import ranks_text
from nnmpi.parallel.facts.passes import PassExchange
from nnmpi.parallel.step_list.chain import chain_of
from nnmpi.parallel.strategies import SINGLE_RANKS
from nnmpi.schedules.lists.chain import Chain
from nnmpi.schedules.lists.proof import prove
from nnmpi.schedules.lists.step_list import StepList
from nnmpi.schedules.op import Kind, as_text

WIDTH = 100


def lines(a: Arrangement) -> Iterator[str]:
    """Yields units and operations of ranks with equal lists; ValueError if a step is no list."""
    for reason in _others(a):
        raise ValueError(f"--list: a step with {reason} is not one list: leave it out")
    prove_lists(a)
    step_of = proved_sums(a) if has_known_sums(a) else None
    proved = "proved" if step_of else "its order proved, not what it sums"
    for ranks, step in _alike(a):
        yield f"list of ranks {ranks_text(tuple(ranks))}, {proved}:"
        yield from _units(a, chain_of(a, ranks[0]))
        yield fill(as_text(step.ops), WIDTH, initial_indent="  ", subsequent_indent="  ")
        for line in typed_lines(step_of.shares, step_of.ranks[ranks[0]]) if step_of else ():
            yield f"    {line}"
    if a.servers:
        servers = ranks_text((*range(a.mesh.size, a.ranks),))
        yield f"no list of ranks {servers}: servers answer requests in the order of arrival"


def _alike(a: Arrangement) -> Iterator[tuple[list[int], StepList]]:
    """Yields (ranks, list) of equal lists: along dp, unless the strategy makes its own."""
    alike, lists = defaultdict[tuple[int, ...], list[int]](list), a.strategy.lists
    for rank in range(a.mesh.size):
        at = a.mesh.coordinates(rank)
        alike[at["tp"], at["pp"], *([at["dp"]] if lists else [])].append(rank)
    for _, ranks in sorted(alike.items()):
        yield ranks, list_of_batch(a, ranks[0])


def prove_lists(a: Arrangement) -> None:
    """Computes and proves the lists of all ranks; of ranks along dp, one is checked, unless the
    strategy makes its own. Raises ScheduleError for the first operation that is wrong."""
    places = defaultdict[tuple[int, int], list[int]](list)
    for rank in range(a.mesh.size):
        at = a.mesh.coordinates(rank)
        places[at["tp"], at["pp"]].append(rank)
    count = None if a.strategy.lists else 1
    for tp in range(a.mesh.axes["tp"]):
        rows = [places[tp, pp][:count] for pp in range(a.mesh.axes["pp"])]
        prove([[list_of_batch(a, rank) for rank in row] for row in rows])


def proved_sums(a: Arrangement) -> ProvedStep:
    """Proves that the lists of all ranks sum what has to be summed; raises ScheduleError."""
    lists = [list_of_batch(a, rank).ops for rank in range(a.mesh.size)]
    return prove_sums(a, lists, partial(_exchanges, a))


def _exchanges(
    a: Arrangement, rank: int, stage: int, samples: int
) -> Mapping[Kind, Mapping[PassExchange, int]]:
    return passes(a, rank, stage, samples).exchanges


def _others(a: Arrangement) -> Iterator[str]:
    """Yields those options of a layout because of which its steps are not one list."""
    if a.strategy.averages:
        yield "averages of parameters, which are sent after some steps,"
    if SINGLE_RANKS.chosen(a.config):
        yield "--verify, which makes it twice,"


def _units(a: Arrangement, chain: Chain) -> Iterator[str]:
    for u, unit in enumerate(chain.units):
        paths = [a.graph.variables[v].path for v in sorted(unit.variables)]
        span = " to ".join(dict.fromkeys((paths[0], paths[-1]))) if paths else "no parameters"
        numbers = ", ".join(map(str, unit.buckets)) or "none"
        yield f"  unit {u}: {span}, buckets: {numbers}"
