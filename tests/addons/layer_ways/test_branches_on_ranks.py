"""Branches on ranks: who has which, what a rank keeps, and inputs by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.traced import traced
from helpers.training.branch_models import BRANCH_MODELS, nested, summed, towers
from helpers.training.pipelined import digits, run

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.addons.layer_ways.branches_on_ranks import owners_of
from nnmpi.addons.planning.layout_lines import as_lines
from nnmpi.addons.planning.run.on_paper import on_paper
from nnmpi.comm import Comm, comm_self, thread_ranks
from nnmpi.nn.tracing import trace
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.tensor.parallelize import rebuild
from nnmpi.parallel.tensor.shard import shard
from nnmpi.run.setup import objectives
from nnmpi.run.setup.cutting import uncut


def owners(sizes: list[int], ranks: int, shared: tuple[int, ...] = ()) -> tuple[int, ...]:
    used = [{-1} if i in shared else {i} for i in range(len(sizes))]
    return owners_of(sizes, used, ranks)


def test_the_largest_branch_is_given_away_first() -> None:
    assert owners([1, 9, 5, 3], 2) == (1, 0, 1, 1)
    assert owners([4, 4, 4], 2) == (0, 1, 0)
    assert owners([0, 0, 0, 0], 2) == (0, 1, 0, 1)  # of equal loads, the fewest branches
    assert owners([3, 2], 4) == (0, 1)  # two ranks have none
    assert owners([3, 2, 3], 2, shared=(0, 2)) == (0, 1, 0)


def arranged(model: nn.Module, tp: int, dp: int = 1, **options: Any) -> Arrangement:
    config = Config(tp=tp, dp=dp, **options)
    cluster = Cluster.on_paper(dp * tp * options.get("pp", 1))
    return on_paper(uncut(config, model, digits(), objectives.criterion(None)), cluster)


def plan(model: nn.Module, tp: int, **options: Any) -> list[str]:
    return [*as_lines(arranged(model, tp, **options))]


def test_a_cut_within_branches_is_refused() -> None:
    assert plan(summed(), 2, pp=2, cut="3")
    with pytest.raises(ValueError, match="stage 1 begins within the branches 3"):
        plan(summed(), 2, pp=2, cut="5")


def test_a_rank_without_trained_parameters_is_refused() -> None:
    assert plan(nested(), 2, pp=3)
    with pytest.raises(ValueError, match="rank 2 along tp has no parameters of stage 1"):
        plan(nested(), 3, pp=3)


def test_a_parameter_that_is_used_outside_is_refused() -> None:
    tied = nn.Linear(8, 8)
    model = nn.Sequential(tied, nn.Branches({"a": tied, "b": nn.Linear(8, 8)}))
    graph = traced(model, 8)
    with pytest.raises(
        ValueError, match=r"0\.weight is used in a branch of 1, which only one rank"
    ):
        shard(graph, 2)


def _numbers(comm: Comm, name: str) -> int:
    options = {"tp": comm.size, "epochs": 1}
    trainer = Trainer(Config(**options), BRANCH_MODELS[name], digits(), comm)
    found = sum(p.size for p in trainer.part.parameters)
    trainer.close()
    return found


def test_a_rank_has_its_own_branches_only() -> None:
    here = thread_ranks.run(3, _numbers, "towers")
    all_of_it = sum(p.size for p in towers().parameters())
    head = (18 * 12 + 12) // 3 + 12 * 10 // 3 + 10
    large, small = 6 * 9 + 12 + 96 * 9 + 9, 64 * 5 + 5
    assert here == [large + head, small + head, head]
    assert max(here) < all_of_it


class Two(nn.Module):
    """Towers with inputs of their own, both of which need a gradient."""

    def __init__(self) -> None:
        self.left, self.right = nn.Linear(4, 6), nn.Linear(3, 5)
        self.towers = nn.Branches({"user": nn.Linear(6, 7), "item": nn.Linear(5, 7)}, "mean")
        self.head = nn.LayerNorm(7)

    def forward(self, user: nnmpi.Tensor, item: nnmpi.Tensor) -> nnmpi.Tensor:
        inputs = {"item": self.right(item), "user": self.left(user)}
        y: nnmpi.Tensor = self.head(self.towers(inputs))
        return y


def _gradients(comm: Comm) -> dict[str, np.ndarray]:
    """Of a pass on ranks; each parameter from the ranks that have it."""
    rng, model = np.random.default_rng(7), Two()

    def zeros(n: int) -> Any:
        return (), {k: nnmpi.tensor(np.zeros((n, f))) for k, f in (("user", 4), ("item", 3))}

    graph = trace(model, zeros, "float64")
    if comm.size > 1:
        rebuild(model, graph, shard(graph, comm.size, whole_output=True), comm)
    model.to("float64")
    user, item, g = (rng.standard_normal((9, f)) for f in (4, 3, 7))
    model(nnmpi.tensor(user), nnmpi.tensor(item)).backward(g)
    found = {}
    for name, p in model.named_parameters():
        if p.grad is not None:
            found[name] = np.zeros(p.place.shape)
            found[name][p.place.slices] = p.grad
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_inputs_by_name_get_their_gradients(ranks: int) -> None:
    expected, found = _gradients(comm_self()), thread_ranks.run(ranks, _gradients)
    assert set().union(*found) == {*expected}
    assert {*found[0]} != {*found[1]}  # each has the towers of its own only
    for name, whole in expected.items():
        copies = [there[name] for there in found if name in there]
        total = sum(copies) if name.startswith(("left", "right")) else copies[0]
        if name.startswith(("left", "right")):  # divided by columns
            np.testing.assert_allclose(total, whole, rtol=1e-12, atol=1e-13)
        for copy in copies if name.startswith(("towers", "head")) else ():
            np.testing.assert_allclose(copy, whole, rtol=1e-12, atol=1e-13)


def _save(comm: Comm, path: Path, name: str) -> Any:
    return run(comm, BRANCH_MODELS[name], tp=comm.size, save=str(path)).done["parameters_sha256"]


@pytest.mark.parametrize("name", BRANCH_MODELS)
def test_a_model_saved_on_three_ranks_is_loaded_on_one(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    (saved, *_) = thread_ranks.run(3, _save, path, name)
    config = Config(dtype="float64", batch_size=24, load=str(path))
    trainer = Trainer(config, BRANCH_MODELS[name], digits(), comm_self())
    assert trainer.strategy.full_state.sha256() == saved
    trainer.close()
