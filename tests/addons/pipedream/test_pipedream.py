"""PipeDream: N ranks are one process that simulates the same delayed updates."""

import numpy as np
import pytest
from helpers.runs import rows
from helpers.training.delayed_updates import CUTS, MLP, Noted, check, options
from helpers.training.laws_pipeline_cuts import MODELS

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport

OPTIMIZERS = {"sgd": {"optimizer": "sgd", "lr": 0.05}, "adam": {"optimizer": "adam", "lr": 2e-3}}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("vertical", [False, True], ids=["stashing", "vertical"])
@pytest.mark.parametrize(
    ("model", "p"),
    [
        pytest.param(model, p, marks=() if model == MLP or p in (2, 4) else pytest.mark.long)
        for model in CUTS
        for p in (1, 2, 3, 4)
    ],
)
def test_ranks_train_as_one_process_with_delayed_updates(
    model: str, p: int, vertical: bool
) -> None:
    """An epoch and a part of the next one; the learning rate changes from step to step."""
    optimizer = OPTIMIZERS["adam" if (p + vertical + (model == MLP)) % 2 else "sgd"]
    steps = {"epochs": 2, "steps": 14, "lr_schedule": "step:5:0.8"}
    config = options(model, p, **optimizer, **steps, vertical_sync=vertical)
    for rank, found in enumerate(check(Config(**config), p)):
        assert (found.result["steps"], found.result["epochs"]) == (14, 2)
        assert found.buffers == (p if vertical else p - rank)
        assert found.result["weight_versions"] == p


@pytest.mark.parametrize("vertical", [False, True], ids=["stashing", "vertical"])
@pytest.mark.parametrize("p", [2, 3])
def test_delayed_updates_cross_residual_connections(p: int, vertical: bool) -> None:
    """The scale of a block is used before its first layer, so it is in the stage before that."""
    blocks = [
        (f"{name}.{part}", 1 + 2 * k + n)
        for k, name in enumerate(("2", "3.0", "4"))
        for n, part in enumerate(("scale", "a", "b"))
    ]
    layers = {"1": 1, "5": 8, **dict(blocks)}
    cut = MODELS["residual mlp"].cuts[p]
    model = {
        "model": "helpers.training.laws_pipeline_cuts:residual_mlp",
        "cut": cut,
        "vertical_sync": vertical,
    }
    config = Config(**options(MLP, p, epochs=2) | model)
    check(
        config,
        p,
        None,
        lambda path: (
            layers[path.rpartition(".")[0]] if not path.endswith("scale") else layers[path]
        ),
    )


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_epoch_may_have_fewer_batches_than_there_are_stages(count: int) -> None:
    size = -(-1437 // count)
    config = Config(**options(MLP, 4, epochs=2) | {"batch_size": size})
    for found in check(config, 4):
        assert found.result["steps"] == 2 * count


@pytest.mark.parametrize("model", CUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_rank_trains_as_without_a_pipeline(model: str, dtype: str) -> None:
    def rank(comm: Comm, config: Config) -> tuple[list[float], str]:
        report = Noted()
        result = Trainer(config, comm=comm).fit(report)
        return report.losses, result["parameters_sha256"]

    config = options(model, 1, epochs=2) | {"dtype": dtype}
    plain = {name: value for name, value in config.items() if name != "schedule"}
    assert threads.run(1, rank, Config(**config)) == threads.run(1, rank, Config(**plain))


def test_a_tensor_that_is_no_parameter_and_needs_a_gradient_is_an_error() -> None:
    """Also if the model makes it in a step only, not when it is traced."""

    class Shifts(nn.Linear):
        shift: nnmpi.Tensor | None = None

        def forward(self, x: nnmpi.Tensor, relu: bool = False) -> nnmpi.Tensor:
            y = super().forward(x)
            return y if self.shift is None else y + self.shift

    def build() -> nn.Module:
        return nn.Sequential(Shifts(6, 6), nn.Linear(6, 3))

    def rank(comm: Comm) -> None:
        config = Config(schedule="pipedream", pp=2, cut="1", micro_batches=1, steps=2)
        trainer = Trainer(config, build, rows(), comm)
        trainer.model[0].shift = nnmpi.tensor(np.ones(6, "float32"), requires_grad=True)
        trainer.fit(NullReport())

    with pytest.raises(ValueError, match=r"shape \(6,\) .* neither trained nor saved"):
        threads.run(2, rank)
