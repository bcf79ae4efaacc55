"""The parameter server on threads: bsp equals one rank, ssp bounds how far workers are apart."""

from typing import Any

import numpy as np
import pytest
from helpers import turns
from helpers.training.served import (
    DIGITS,
    IRIS,
    check_ranks_agree,
    clouds,
    fit,
    pushes,
    run,
    run_paced,
)

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm
from nnmpi.nn.models import mlp
from nnmpi.nn.passes import current_pass
from nnmpi.parallel.step.executor import StepState

# ---- synchronous


@pytest.mark.parametrize("case", [IRIS, DIGITS], ids=["iris", "digits"])
@pytest.mark.parametrize(
    ("optimizer", "servers"),
    [
        *(("sgd", 2), ("adam", 1)),
        *(pytest.param(*more, marks=pytest.mark.long) for more in (("sgd", 1), ("adam", 2))),
    ],
)
def test_bsp_is_equal_to_one_rank(case: dict[str, Any], optimizer: str, servers: int) -> None:
    """Uneven parts, several epochs, gradients that are clipped, learning rates that change."""
    options = {
        "optimizer": optimizer,
        "dtype": "float64",
        "steps": 10,
        "clip_norm": 0.5,
        "lr_schedule": "cosine",
        "micro_batches": 2,
    }
    (one,) = run(1, **case, **options)
    for workers in (1, 2, 3):
        ended = run(workers + servers, **case, **options, servers=servers)
        check_ranks_agree(ended)
        result, state = ended[0]
        for name, array in one.state.items():
            scale = max(np.abs(array).max(), 1e-30)
            assert np.abs(state[name] - array).max() <= 1e-10 * scale, name
        assert result["loss"] == pytest.approx(one.result["loss"], rel=1e-10)
        assert result["test_loss"] == pytest.approx(one.result["test_loss"], rel=1e-10)
        assert result["layout"]["dp"] == workers
        assert result["staleness"] == {str(w): {"0": 10} for w in range(workers)}


def test_ssp_without_staleness_is_bsp_bit_for_bit() -> None:
    by = [run(4, **DIGITS, steps=6, servers=1, sync=sync) for sync in ("bsp", "ssp")]
    hashes = {ended.result["parameters_sha256"] for job in by for ended in job}
    assert len(hashes) == 1


def test_one_asynchronous_worker_is_one_rank() -> None:
    (one,) = run(1, **DIGITS, dtype="float64", steps=12, clip_norm=1.0, lr_schedule="cosine")
    for mode in ({"sync": "asp"}, {"sync": "ssp", "staleness": 3}):
        options = {"steps": 12, "clip_norm": 1.0, "lr_schedule": "cosine", **mode}
        ended = run(2, **DIGITS, dtype="float64", **options)
        check_ranks_agree(ended)
        for name, array in one.state.items():
            np.testing.assert_allclose(ended[0].state[name], array, rtol=0, atol=1e-10)


class SometimesUsed(nn.Module):
    """One layer is used in the first step, and then only for an odd number of rows."""

    def __init__(self) -> None:
        self.net, self.extra = mlp(6, 8, 3), nn.Linear(6, 3)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        now = current_pass.get()
        used = (now is not None and now.step == 0) or len(x.data) % 2
        return self.net(x) + self.extra(x) if used else self.net(x)


def test_a_layer_that_some_workers_do_not_use_is_summed_as_without_a_server() -> None:
    options = {"batch_size": 41, "dtype": "float64", "epochs": 2}
    plain = turns.run(2, fit, Config(**options), SometimesUsed, clouds(240))
    served = turns.run(4, fit, Config(**options, servers=2), SometimesUsed, clouds(240))
    check_ranks_agree(served)
    for name, array in plain[0].state.items():
        np.testing.assert_allclose(served[0].state[name], array, rtol=1e-12, atol=1e-14)


# ---- asynchronous


@pytest.mark.parametrize(("ranks", "servers"), [(3, 1), (5, 2)])
@pytest.mark.parametrize("staleness", [1, 2])
def test_ssp_lets_a_worker_be_as_many_steps_ahead_as_the_staleness_and_no_more(
    staleness: int, ranks: int, servers: int
) -> None:
    ended, seen = run_paced(
        ranks,
        lambda c: c + staleness if c < 3 else 0,
        lambda c: 0,
        sync="ssp",
        staleness=staleness,
        servers=servers,
    )
    assert [ahead for c, ahead in seen if c < 3] == [c + staleness for c in range(3)]
    assert all(ahead <= c + staleness for c, ahead in seen)
    assert len(seen) > 5  # in the second epoch too
    check_ranks_agree(ended)
    assert pushes(ended[0].result) == 2 * 6 * (ranks - servers)


def test_asp_lets_a_fast_worker_make_the_pushes_of_a_slow_one() -> None:
    """Of the 12 pushes of an epoch, the slow worker makes the one that each worker has for sure."""
    ended, seen = run_paced(
        3, lambda c: 10 + 11 * c, lambda c: c // 11, lambda c: 11 + 12 * c, sync="asp"
    )
    assert seen == [(0, 10), (1, 21)]
    check_ranks_agree(ended)
    result = ended[0].result
    assert result["staleness"]["0"] == {"11": 2}
    assert sum(result["staleness"]["1"].values()) == 22
    assert result["steps"] == 12
    assert result["accuracy"] > 0.6
    assert np.isfinite(result["loss"])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [{"sync": "asp"}, {"sync": "ssp", "staleness": 2}], ids=str)
def test_asynchronous_training_learns_and_ranks_agree(options: dict[str, Any]) -> None:
    """BatchNorm and dropout, uneven parts."""
    ended = run(5, **DIGITS, **options, servers=2, epochs=2, micro_batches=2,
                slow_rank="1:2", jitter="0.2:3", clip_norm=5.0)  # fmt: skip
    check_ranks_agree(ended)
    result = ended[0].result
    assert pushes(result) == 3 * result["steps"] == 3 * 2 * 39
    assert result["accuracy"] > 0.8
    assert result["skipped_steps"] == 0
    assert max(max(map(int, c)) for c in result["staleness"].values()) > 0


def test_the_results_of_an_epoch_add_up_to_all_samples_on_all_ranks() -> None:
    def rank(comm: Comm) -> list[tuple[int, float, StepState, bool]]:
        # Each push has 13 samples, so that the sums do not depend on who makes it.
        config = Config(sync="asp", servers=2, batch_size=39, epochs=3, slow_rank="0:3", steps=14)
        trainer = Trainer(config, lambda: mlp(6, 8, 3), clouds(234), comm=comm)
        state, found = StepState(), []
        for epoch in range(3):
            steps = list(trainer.strategy.steps(trainer.train, state))
            for s in steps[:-1]:
                assert s.state == (6 * epoch + s.state.batch, epoch, s.state.batch)
            state = steps[-1].state
            sums = sum(s.samples for s in steps), sum(s.loss for s in steps)
            found.append((sums[0], round(sums[1], 9), state, steps[-1].request))
        return found

    first, *others = turns.run(5, rank)
    assert [(n, state, stop) for n, _, state, stop in first] == [
        (234, (6, 1, 0), False),
        (234, (12, 2, 0), False),
        (78, (14, 2, 2), False),
    ]
    assert all(other == first for other in others)


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_workers_end_an_epoch_with_the_same_parameters_and_statistics(sync: str) -> None:
    def rank(comm: Comm) -> dict[str, np.ndarray]:
        trainer = Trainer(Config(**DIGITS, sync=sync, servers=1, slow_rank="1:2"), comm=comm)
        for _ in trainer.strategy.steps(trainer.train, StepState()):
            pass
        return trainer.model.state_dict()

    first, *others, _ = turns.run(4, rank)
    for other in others:
        for name, array in first.items():
            if not name.endswith("num_batches_tracked"):
                np.testing.assert_array_equal(other[name], array, err_msg=name)


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_workers_without_samples_of_a_batch_take_part(sync: str) -> None:
    """Batches of 2, in parts of 1, for 3 workers."""
    ended = run(4, **(DIGITS | {"batch_size": 2}), servers=1, sync=sync, steps=12,
                micro_batches=2)  # fmt: skip
    check_ranks_agree(ended)
    assert ended[0].result["steps"] == 12
    assert ended[0].result["skipped_steps"] == 0
    assert pushes(ended[0].result) == 36
