"""ZeRO in parts: units, buckets, the parts of ranks, and where gradients are after a step."""

import itertools

import numpy as np
import pytest
from nnmpi.parallel.zero.units import cut_units, units, users

from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.nn.store import spans
from nnmpi.parallel.stores.local import Bucket
from nnmpi.parallel.zero.shards import Shards
from nnmpi.parallel.zero.store import ShardedStore

COMM = threads.comm_self()
RNG = np.random.default_rng(0)
DATA = RNG.standard_normal((60, 8)), np.arange(60) % 3


def layers(n: int) -> list[nn.Linear]:
    return [nn.Linear(4, 4) for _ in range(n)]


# ---- units and buckets


def test_a_unit_is_a_layer_or_layers_that_share_a_weight() -> None:
    a, b, c, d = layers(4)
    d.weight = b.weight
    model = nn.Sequential(a, nn.Tanh(), b, c, d)
    found = units({0: model}, [*model.parameters()])
    assert [unit.parameters for unit in found] == [
        [a.weight, a.bias],
        [b.weight, b.bias, d.bias],
        [c.weight, c.bias],
    ]


def test_frozen_parameters_are_in_no_unit() -> None:
    a, b = layers(2)
    a.weight.requires_grad = False
    trained = [a.bias, b.bias, b.weight]
    found = units({0: nn.Sequential(a, b)}, trained)
    assert [unit.parameters for unit in found] == [[a.bias], [b.bias, b.weight]]


def test_buckets_are_cut_from_the_end_and_between_stages() -> None:
    """Each layer takes 32 numbers: 16, and 4 padded to 16."""
    a, b, c, d = layers(4)
    stages = {0: nn.Sequential(a, b), 3: nn.Sequential(c, d)}
    together = units(stages, [p for stage in stages.values() for p in stage.parameters()])
    assert [unit.stages for unit in together] == [{0}, {0}, {3}, {3}]

    def cut(nbytes: float) -> list[tuple[int, int]]:
        return [bucket[:2] for bucket in cut_units(together, nbytes, 4, COMM)]

    assert cut(1) == [(96, 128), (64, 96), (32, 64), (0, 32)]
    assert cut(1e9) == [(64, 128), (0, 64)]


def test_a_unit_of_two_stages_is_a_bucket_of_its_own() -> None:
    a, b, c, d = layers(4)
    c.weight = b.weight
    stages = {0: nn.Sequential(a, b), 1: nn.Sequential(c, d)}
    parameters = list(dict.fromkeys([*stages[0].parameters(), *stages[1].parameters()]))
    together = units(stages, parameters)
    assert [unit.stages for unit in together] == [{0}, {0, 1}, {1}]
    assert len(cut_units(together, 1e9, 4, COMM)) == 3


# ---- parts


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_the_parts_of_all_ranks_make_up_every_bucket(d: int) -> None:
    parameters = [*nn.Sequential(*layers(3)).parameters()]

    def parts(comm: Comm) -> list[tuple[int, int, int]]:
        edges = [(64, 96), (16, 64), (0, 16)]
        buckets = [Bucket(start, stop, comm) for start, stop in edges]
        shards = Shards(spans(parameters), buckets, users({}, parameters))
        assert shards.bucket_of == [0, 1, 1, 1, 2, 2]
        assert [*shards.within(0, 96)] == [part for part in shards.parts if part[0] < part[1]]
        assert shards.size == sum(stop - start for start, stop, _ in shards.parts)
        at = 0
        for start, stop, where in shards.parts:
            assert where == at
            at += stop - start
        inner = [part[:2] for part in shards.within(20, 70)]
        assert all(20 <= start < stop <= 70 for start, stop in inner)
        return [*shards.within(20, 70)]

    covered = sorted(part[:2] for rank in threads.run(d, parts) for part in rank)
    assert covered[0][0] == 20
    assert covered[-1][1] == 70
    assert all(a[1] == b[0] for a, b in itertools.pairwise(covered))


# ---- gradients after a step


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_the_gradient_of_a_step_is_whole_where_all_ranks_ask_for_it(zero: int) -> None:
    def gradients(comm: Comm, zero: int) -> dict[str, np.ndarray]:
        config = Config(
            model="mlp:8-7-5-3", dtype="float64", batch_size=20, allreduce="ring", zero=zero
        )
        t = Trainer(config, None, DATA, comm)
        next(t.strategy.steps(t.train, t.state))
        found = {}
        for name, p in t.model.named_parameters():
            if comm.size == 1:
                found[name] = p.grad.copy()
                continue
            assert isinstance(p.store, ShardedStore)
            with pytest.raises(ValueError, match=f"{name}: after a step the gradient is in parts"):
                _ = p.grad
            found[name] = p.store.whole_gradient(p.index).copy()
        t.close()
        return found

    (expected,) = threads.run(1, gradients, 0)
    for found in threads.run(3, gradients, zero):
        assert found.keys() == expected.keys()
        for name, g in found.items():
            np.testing.assert_allclose(g, expected[name], rtol=1e-10, atol=1e-14)
