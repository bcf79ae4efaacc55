"""Units: which parameters are in one bucket.

An op uses parameters of one layer, so what it needs is there when their bucket is. A parameter of
several layers joins these. Between two stages of a pipeline a bucket ends, since their backward
passes are apart.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import spans
from nnmpi.parallel.stores.local import Bucket


class Unit(NamedTuple):
    """Parameters that are together, and the stages of this rank that use them."""

    parameters: list[Parameter]
    stages: frozenset[int]


def units(stages: Mapping[int, Module], parameters: Sequence[Parameter]) -> list[Unit]:
    """All of these parameters; each unit comes where the first of its parameters was."""
    group = {p: [p] for p in parameters}
    layers = chain.from_iterable(stage.modules() for stage in stages.values())
    for layer in layers:
        own = [p for p in layer._parameters.values() if p in group]
        for p in own[1:]:
            _join(group, own[0], p)
    number = {p: i for i, p in enumerate(parameters)}
    using = users(stages, parameters)
    found = []
    for members in {id(members): members for members in group.values()}.values():
        own = sorted(members, key=number.__getitem__)
        found.append(Unit(own, frozenset[int]().union(*(using[number[p]] for p in own))))
    return found


def cut_units(found: Sequence[Unit], nbytes: float, itemsize: int, comm: Comm) -> list[Bucket]:
    """Buckets of at least `nbytes` each, or up to the edge of a stage; the last ones first."""
    sizes = [spans(unit.parameters)[-1][1] for unit in found]
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    buckets, end = list[Bucket](), len(found)
    for i in reversed(range(len(found))):
        is_edge = i == 0 or found[i - 1].stages != found[i].stages
        if is_edge or (starts[end] - starts[i]) * itemsize >= nbytes:
            buckets.append(Bucket(starts[i], starts[end], comm))
            end = i
    return buckets


def _join(group: dict[Parameter, list[Parameter]], a: Parameter, b: Parameter) -> None:
    one, other = group[a], group[b]
    if one is not other:
        one.extend(other)
        group.update(dict.fromkeys(other, one))


def users(stages: Mapping[int, Module], parameters: Sequence[Parameter]) -> list[frozenset[int]]:
    """For each parameter the stages of this rank that use it."""
    having = {s: {*stage.parameters()} for s, stage in stages.items()}
    return [frozenset(s for s, own in having.items() if p in own) for p in parameters]
