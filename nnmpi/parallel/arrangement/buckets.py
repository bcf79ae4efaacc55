"""Buckets: stretches of gradients that are summed in one operation, and the ranks that do it.

The last layers' gradients are final first, so buckets are cut from the end of the flat buffer:

    gradients   [ scalars | conv1 | conv2 | fc1 | fc2 ]
                  ◄────bucket 2────► ◄─ 1 ─► ◄ 0 ►     summed in the order 0, 1, 2 on every rank
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from nnmpi.collectives.step import cut
from nnmpi.mesh import REPLICAS
from nnmpi.nn.graph import Graph
from nnmpi.parallel.arrangement.arrangement import (
    NOT_TIED,
    Arrangement,
    Bucket,
    Held,
    HeldVariable,
    users_of,
)

MB = 1e6


def over(a: Arrangement, rank: int, bucket: Bucket) -> tuple[int, ...]:
    """The ranks that sum a bucket, or scatter its sum among them."""
    if bucket.tied == NOT_TIED or a.store.scatters:
        return a.replicas(rank)
    return across_stages(a, rank, bucket, *REPLICAS, "pp")


def across_stages(a: Arrangement, rank: int, bucket: Bucket, *axes: str) -> tuple[int, ...]:
    """The ranks along these axes in the stages that have the tied parameter of a bucket."""
    stages = a.division.ranks()[a.held(rank).trained[bucket.tied].variable]
    return tuple(r for r in a.mesh.group(rank, *axes) if a.mesh.coordinates(r)["pp"] in stages)


def beside(a: Arrangement, rank: int, bucket: Bucket) -> tuple[int, ...]:
    """The replicas on the node of a rank."""
    return a.cluster.beside(a.replicas(rank))[a.cluster.nodes[rank]]


def alone(a: Arrangement, rank: int, bucket: Bucket) -> tuple[int, ...]:
    """The rank itself."""
    return (rank,)


def owned_ranges(a: Arrangement, rank: int) -> Iterator[tuple[int, int]]:
    """What a rank updates of its flat buffer: (start, stop) in each bucket."""
    for bucket in a.held(rank).buckets:
        ranks = a.store.updaters(a, rank, bucket)
        n, p, r = bucket.stop - bucket.start, len(ranks), ranks.index(rank)
        yield bucket.start + cut(n, p, r), bucket.start + cut(n, p, r + 1)


# ---- where they are cut


def with_buckets(a: Arrangement, held: Held) -> Held:
    """What ranks have, with the buckets of the gradients; scalars that are summed last go."""
    if a.is_mixed or not a.store.scalars:
        held = held._replace(scalars=0)
    if not a.store.buckets or not held.trained:
        return held
    mb = a.config.bucket_mb
    if mb is None:  # on one node, to cut into buckets costs more time than overlap saves
        near = a.algorithm == "shared" and all(map(a.cluster.on_one_node, a.mesh.groups(*REPLICAS)))
        mb = float("inf") if near else 1.0
    numbers, cut = mb * MB / a.dtype.itemsize, _by_layers if a.store.scatters else _by_parameters
    return held._replace(buckets=tuple(cut(a, held, numbers)))


def _by_parameters(a: Arrangement, held: Held, numbers: float) -> list[Bucket]:
    tied = [i for i, path in enumerate(_paths(a, held)) if path in a.tied]
    return cut_buckets(held.spans, numbers, tied, [one.stretch for one in held.trained])


def _by_layers(a: Arrangement, held: Held, numbers: float) -> list[Bucket]:
    """What one layer uses is in one bucket."""
    tied, paths = a.tied, _paths(a, held)
    groups = gathered_together(a.graph, held.trained)
    firsts = [*accumulate(map(len, groups), initial=0)]
    spans, alone = [], []
    for k, (first, end) in enumerate(pairwise(firsts)):
        both, of_several = paths[first:end], [path for path in paths[first:end] if path in tied]
        if len({tied.get(path) for path in both}) > 1:
            raise ValueError(
                f"{a.store.name} gathers {' and '.join(both)} together, and {of_several[0]} is in "
                "several stages: use --zero 1, or a --cut that keeps it in one stage"
            )
        spans.append((held.spans[first][0], held.spans[end - 1][1]))
        alone += [k] * bool(of_several)
    labels = [(users_of(group), group[0].stretch) for group in groups]
    found = cut_buckets(spans, numbers, alone, labels)
    return [b if b.tied == NOT_TIED else b._replace(tied=firsts[b.tied]) for b in found]


def _paths(a: Arrangement, held: Held) -> list[str]:
    return [a.graph.variables[one.variable].path for one in held.trained]


def cut_buckets(
    spans: Sequence[tuple[int, int]],
    numbers: float,
    tied: Collection[int] = (),
    labels: Sequence[Any] = (),
) -> list[Bucket]:
    """Buckets of at least so many numbers, the last ones first; no span is cut in two.

    The spans are of parameters, or of units of parameters that are gathered together. Those at the
    indices `tied`, which other stages have too, are buckets alone. If `labels` are given, one for
    each span, what is in one bucket has the same one.
    """
    edges = [
        (i if i in tied else NOT_TIED, labels[i] if labels else None) for i in range(len(spans))
    ]
    found, end = list[Bucket](), len(spans)
    for i in reversed(range(len(spans))):
        start, stop = spans[i][0], spans[end - 1][1]
        if i == 0 or edges[i - 1] != edges[i] or stop - start >= numbers:
            found.append(Bucket(start, stop, edges[i][0]))
            end = i
    if found[-1].tied == NOT_TIED or not spans[0][0]:  # scalars go with what is behind them
        return [*found[:-1], found[-1]._replace(start=0)]
    return [*found, Bucket(0, spans[0][0])]


def gathered_together(
    graph: Graph, variables: Sequence[HeldVariable]
) -> list[tuple[HeldVariable, ...]]:
    """Units of parameters: those of one module are in one unit, and one of several modules joins
    these. An op uses parameters of one module, so what it needs is there when their bucket is."""
    units: list[tuple[set[str], list[int]]] = []
    for k, held in enumerate(variables):
        modules = {name.rpartition(".")[0] for name in graph.variables[held.variable].names}
        members = [k]
        for unit in [unit for unit in units if unit[0] & modules]:
            units.remove(unit)
            modules, members = modules | unit[0], members + unit[1]
        units.append((modules, members))
    in_order = sorted(sorted(members) for _, members in units)
    return [tuple(variables[k] for k in members) for members in in_order]
