"""Buckets of a flat buffer, and the units that ZeRO gathers together."""

import math

from helpers.traced import traced

from nnmpi import nn
from nnmpi.nn.graph import Graph
from nnmpi.parallel.arrangement.arrange import cut_buckets, gathered_together
from nnmpi.parallel.arrangement.arrangement import users_of
from nnmpi.parallel.arrangement.rank_model import HeldVariable

# ---- buckets


def test_buckets_are_cut_from_the_end() -> None:
    """After a head of 16 numbers, parameters of 16, 32, 16 and 64."""
    spans = [(16, 32), (32, 64), (64, 80), (80, 144)]

    def cut(numbers: float) -> list[tuple[int, int]]:
        return [bucket[:2] for bucket in cut_buckets(spans, numbers)]

    assert cut(math.inf) == [(0, 144)]
    assert cut(1) == [(0, 32), (32, 64), (64, 80), (80, 144)]
    assert cut(65) == [(0, 64), (64, 144)]
    assert cut(80) == [(0, 64), (64, 144)]
    assert cut(32) == [(0, 32), (32, 80), (80, 144)]


def test_a_tied_parameter_is_a_bucket_alone() -> None:
    spans = [(16, 32), (32, 64), (64, 80), (80, 144)]
    found = cut_buckets(spans, math.inf, tied=[1])
    assert found == [(0, 32, -1), (32, 64, 1), (64, 144, -1)]
    # the head is summed by all ranks, not only by those of the parameter's stages
    first = cut_buckets(spans, math.inf, tied=[0])
    assert first == [(0, 16, -1), (16, 32, 0), (32, 144, -1)]


# ---- units


def layers(n: int) -> list[nn.Linear]:
    return [nn.Linear(4, 4) for _ in range(n)]


def trained(graph: Graph, users: list[frozenset[int]] | None = None) -> list[HeldVariable]:
    """All trained parameters, in the order of the state dict."""
    found = [(v, variable) for v, variable in enumerate(graph.variables) if variable.is_trained]
    users = users or [frozenset({0})] * len(found)
    return [
        HeldVariable(v, variable.shape, variable.size, using)
        for (v, variable), using in zip(found, users, strict=True)
    ]


def names(graph: Graph) -> list[list[str]]:
    found = gathered_together(graph, trained(graph))
    return [[graph.variables[held.variable].path for held in unit] for unit in found]


def test_a_unit_is_a_layer_or_layers_that_share_a_weight() -> None:
    a, b, c, d = layers(4)
    d.weight = b.weight
    graph = traced(nn.Sequential(a, nn.Tanh(), b, c, d), 4)
    assert names(graph) == [
        ["0.weight", "0.bias"],
        ["2.weight", "2.bias", "4.bias"],
        ["3.weight", "3.bias"],
    ]


def test_frozen_parameters_are_in_no_unit() -> None:
    a, b = layers(2)
    a.weight.requires_grad = False
    assert names(traced(nn.Sequential(a, b), 4)) == [["0.bias"], ["1.weight", "1.bias"]]


def test_buckets_of_units_are_cut_from_the_end_and_between_stages() -> None:
    """Each layer takes 32 numbers: 16, and 4 padded to 16."""
    graph = traced(nn.Sequential(*layers(4)), 4)
    users = [frozenset({0})] * 4 + [frozenset({3})] * 4
    stages = [users_of(unit) for unit in gathered_together(graph, trained(graph, users))]
    assert stages == [{0}, {0}, {3}, {3}]
    spans = [(0, 32), (32, 64), (64, 96), (96, 128)]
    assert [b[:2] for b in cut_buckets(spans, 1, labels=stages)] == spans
    assert [b[:2] for b in cut_buckets(spans, 1e9, labels=stages)] == [(0, 64), (64, 128)]


def test_a_unit_of_two_stages_is_a_bucket_of_its_own() -> None:
    a, b, c, d = layers(4)
    c.weight = b.weight
    graph = traced(nn.Sequential(a, b, c, d), 4)
    users = [frozenset(u) for u in ({0}, {0}, {0, 1}, {0}, {1}, {1}, {1})]
    stages = [users_of(unit) for unit in gathered_together(graph, trained(graph, users))]
    assert stages == [{0}, {0, 1}, {1}]
    assert len(cut_buckets([(0, 32), (32, 80), (80, 112)], 1e9, labels=stages)) == 3
