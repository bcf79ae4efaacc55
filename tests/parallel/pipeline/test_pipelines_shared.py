"""Parameters and buffers of layers that several stages of a pipeline use."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.training.unusual_models import Sometimes

from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport

OPTIONS = {"steps": 5, "batch_size": 16, "micro_batches": 3, "dtype": "float64", "quiet": True}
RNG = np.random.default_rng(0)
DATA = (RNG.normal(size=(70, 8)), RNG.integers(0, 3, 70))


def crossed() -> nn.Sequential:
    """Layers 0 and 6 share a weight, and so do 2 and 4: a cut at 3 gives both stages both."""
    linear = [nn.Linear(8, 8) for _ in range(4)]
    linear[3].weight, linear[2].weight = linear[0].weight, linear[1].weight
    layers = [layer for one in linear for layer in (one, nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(8, 3))


def twice() -> nn.Sequential:
    """Layers 0 and 4 share a weight."""
    linear = [nn.Linear(8, 8) for _ in range(4)]
    linear[2].weight = linear[0].weight
    layers = [layer for one in linear for layer in (one, nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(8, 3))


def ends() -> nn.Sequential:
    """Layers 0 and 4 share a weight, and have no other parameter."""
    first, last = (nn.Linear(8, 8, bias=False) for _ in range(2))
    last.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), last)


def one_norm() -> nn.Sequential:
    """Layers 1 and 4 are one BatchNorm."""
    norm = nn.BatchNorm1d(8)
    first, second = (nn.Linear(8, 8, bias=False) for _ in range(2))
    return nn.Sequential(first, norm, nn.Tanh(), second, norm, nn.Tanh(), nn.Linear(8, 3))


def sometimes(never: bool) -> nn.Sequential:
    """Layers 1 and 3 share a weight, which layer 3 always uses."""
    always, rarely = nn.Linear(8, 8, bias=False), Sometimes(8, never)
    always.weight = rarely.linear.weight
    return nn.Sequential(nn.Linear(8, 8), rarely, nn.Tanh(), always, nn.Linear(8, 3))


def norms() -> nn.Sequential:
    """A norm, weight and bias, that both stages have."""
    norm = nn.LayerNorm(8)
    return nn.Sequential(nn.Linear(8, 8), norm, nn.Tanh(), nn.Linear(8, 8), norm, nn.Linear(8, 3))


def losses(comm: Comm, build: Any = crossed, **options: Any) -> list[float]:
    """The loss of training and of the test at the end."""
    trainer = Trainer(Config(**OPTIONS | options), build=build, data=DATA, comm=comm)
    done = trainer.fit(NullReport())
    return [done["loss"], done["test_loss"]]


def train_as_one_rank(same: dict[str, Any], **layout: Any) -> None:
    """Two stages; `same` are options of the one rank too."""
    (expected,) = threads.run(1, partial(losses, **same))
    job = partial(losses, **same, pp=2, **layout)
    for found in threads.run(2 * layout.get("dp", 1), job):
        assert found == pytest.approx(expected, rel=1e-10)


CLIPPED = {"clip_norm": 0.1}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("zero", "how"), [(0, "auto"), (1, "auto"), (1, "mpi"), (1, "tree")])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("dp", [1, 2])
def test_weights_that_two_stages_share_in_opposite_orders(
    dp: int, overlap: bool, zero: int, how: str
) -> None:
    """Their sums start in different orders on the two ranks, and none waits for the other."""
    same = {**CLIPPED, "optimizer": "adam"}
    train_as_one_rank(same, dp=dp, cut="3", overlap=overlap, zero=zero, allreduce=how)


@pytest.mark.parametrize("zero", [0, 1])
def test_a_stage_with_nothing_but_a_shared_weight(zero: int) -> None:
    train_as_one_rank({"build": ends, **CLIPPED}, dp=2, cut="4", zero=zero, allreduce="ring")


@pytest.mark.parametrize("zero", [2, 3])
def test_zero_that_scatters_a_shared_weight_with_one_that_is_not_is_refused(zero: int) -> None:
    with pytest.raises(ValueError, match=rf"zero {zero} gathers .* use --zero 1, or a --cut that"):
        threads.run(4, partial(losses, pp=2, dp=2, cut="3", zero=zero))
    train_as_one_rank({}, dp=2, cut="8", zero=zero)


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("dp", [2, 3])
def test_a_layer_that_two_stages_share(dp: int, zero: int) -> None:
    train_as_one_rank({"build": norms, **CLIPPED}, dp=dp, cut="3", zero=zero, bucket_mb=1e-6)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_weight_that_two_stages_of_one_rank_share(zero: int) -> None:
    """Both ranks have two stages; layers 0 and 4 are in stages 0 and 2."""
    train_as_one_rank({"build": twice}, dp=2, cut="2,4,6", schedule="interleaved", zero=zero)


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("never", [False, True])
@pytest.mark.parametrize("dp", [1, 2])
def test_a_shared_weight_without_a_gradient_in_one_stage(dp: int, never: bool, zero: int) -> None:
    """It is updated where it was not used too, or the copies would become different."""
    same = {"build": partial(sometimes, never), "optimizer": "adam", "lr": 0.1}
    train_as_one_rank(same, dp=dp, cut="2", zero=zero)


@pytest.mark.parametrize(
    ("ranks", "layout"),
    [(2, {"pp": 2, "cut": "3"}), (2, {"pp": 2, "schedule": "interleaved", "virtual_stages": 2})],
)
def test_one_layer_with_buffers_in_two_stages_is_refused(ranks: int, layout: Any) -> None:
    """Each stage would update running statistics of its own, or in another order."""
    with pytest.raises(ValueError, match=r"1 \(BatchNorm1d\) is used in stages \d and \d"):
        threads.run(ranks, partial(losses, build=one_norm, **layout))
