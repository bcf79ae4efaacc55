"""ZeRO in parts: the parts of ranks, and where gradients are after a step."""

import itertools
from functools import partial

import numpy as np
import pytest
from helpers.training.laws_language import MODELS, POSITIONS, windows

from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.nn.store import spans_of, within
from nnmpi.parallel.stores.buckets import Buckets, CommBucket
from nnmpi.parallel.stores.zero import ZeroStore

RNG = np.random.default_rng(0)
DATA = RNG.standard_normal((60, 8)), np.arange(60) % 3


def layers(n: int) -> list[nn.Linear]:
    return [nn.Linear(4, 4) for _ in range(n)]


# ---- parts


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_the_parts_of_all_ranks_make_up_every_bucket(d: int) -> None:
    parameters = [*nn.Sequential(*layers(3)).parameters()]

    def parts(comm: Comm) -> list[tuple[int, int]]:
        edges = [(0, 16), (16, 64), (64, 96)]
        given = [CommBucket(start, stop, comm) for start, stop in edges]
        buckets = Buckets(spans_of([p.padded_size for p in parameters]), given, "ring")
        shards = buckets.shards()
        assert buckets.of == [0, 1, 1, 1, 2, 2]
        assert [*within(shards, 0, 96)] == [part for part in shards if part[0] < part[1]]
        at = 0
        for start, stop, where in shards:
            assert where == at
            at += stop - start
        inner = [part[:2] for part in within(shards, 20, 70)]
        assert all(20 <= start < stop <= 70 for start, stop in inner)
        return inner

    covered = sorted(part for rank in threads.run(d, parts) for part in rank)
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
            assert isinstance(p.store, ZeroStore)
            with pytest.raises(ValueError, match=f"{name}: after a step the gradient is sharded"):
                _ = p.grad
            found[name] = p.store.whole_gradient(p.index).copy()
        t.close()
        return found

    (expected,) = threads.run(1, gradients, 0)
    for found in threads.run(3, gradients, zero):
        assert found.keys() == expected.keys()
        for name, g in found.items():
            np.testing.assert_allclose(g, expected[name], rtol=1e-10, atol=1e-14)


def test_the_gradient_of_a_weight_of_two_stages_is_clipped_in_all_its_parts() -> None:
    config = Config(dp=2, pp=2, zero=1, clip_norm=0.01, batch_size=4, steps=1, verify=True)

    def rank(comm: Comm) -> object:
        build = partial(MODELS["decoder"], POSITIONS)
        return Trainer(config, build, windows(20), comm).fit(NullReport())["event"]

    assert threads.run(4, rank) == ["done"] * 4
