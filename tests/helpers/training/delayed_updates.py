"""Runs of PipeDream on threads, and a simulation of the same delayed updates in one process."""

from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from helpers.training.pipelined import Noted

from nnmpi import Config, Trainer, tensor
from nnmpi.addons.pipedream.versions import VersionStore
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.nn.passes import Pass
from nnmpi.parallel.step.stage import forward

CUTS = {
    "mlp:64-48-40-32-10": {1: "", 2: "3", 3: "3,5", 4: "3,5,7"},
    "digits-cnn": {1: "", 2: "4", 3: "4,10", 4: "1,4,10"},
}
MLP, CNN = CUTS


def options(model: str, p: int, **others: Any) -> dict[str, Any]:
    """9 batches of 150 of the 1437 digits, and one of 87."""
    cut = {"cut": CUTS[model][p]} if p > 1 else {}
    common = {"model": model, "data": "digits", "batch_size": 150, "dtype": "float64"}
    return {**common, "pp": p, "schedule": "pipedream", **cut, **others}


class Ended(NamedTuple):
    """How a run has ended; the same on all ranks, but for the number of buffers of weights."""

    result: dict[str, Any]
    losses: list[float]
    state: dict[str, np.ndarray]
    buffers: int


def train(comm: Comm, config: Config, stop: tuple[int, int] | None = None, *given: Any) -> Ended:
    """`stop`: a rank, and the steps after which it wants to end the run."""
    state, buffers = dict[str, np.ndarray](), list[int]()

    class Gathers:
        def on_epoch(self, trainer: Trainer, event: dict[str, Any]) -> None:
            store = trainer.optimizer.parameters[0].store
            assert isinstance(store, VersionStore)
            buffers.append(store.buffers)
            arrays = trainer.strategy.full_state.on_all_ranks()
            state.update((name, np.array(a)) for name, a in arrays)

    trainer = Trainer(config, *given, comm=comm, callbacks=[Gathers()])

    def after(step: int) -> None:
        if (comm.rank, step) == stop:
            trainer.stop()

    report = Noted(after)
    result = trainer.fit(report)
    trainer.close()
    return Ended(result, report.losses, state, buffers[-1])


# ---- the simulation


def first_name(path: str) -> int:
    """The layer of a parameter of a Sequential."""
    return int(path.split(".")[0])


def simulated(
    config: Config, p: int, steps: int, layer_of: Callable[[str], int]
) -> tuple[list[float], dict[str, np.ndarray]]:
    """The losses of these steps and the model after them, from old weights in one process.

    In an epoch stage s computes batch i with the weights after max(0, i - delay) of its updates.
    """
    plain = {"pp": 1, "schedule": "1f1b", "cut": None, "vertical_sync": False}
    trainer = Trainer(Config(**{**vars(config), **plain}), comm=comm_self())
    model, optimizer = trainer.model, trainer.optimizer
    starts = [int(layer) for layer in (config.cut or "").split(",") if layer]
    parameters = dict(model.named_parameters())
    delay = {
        path: p - 1 - (0 if config.vertical_sync else bisect_right(starts, layer_of(path)))
        for path in parameters
    }
    losses = list[float]()
    for epoch in range(config.epochs):
        model.train()
        versions = [{path: w.array.copy() for path, w in parameters.items()}]
        for i, batch in enumerate(trainer.train.epoch(epoch)):
            if (step := len(losses)) == steps:
                break
            for path, w in parameters.items():
                w.array = versions[max(0, i - delay[path])][path]
                w.grad_array = None
            scores = forward(model, tensor(batch.x), Pass(step, batch.samples))
            loss = trainer.session.task.objective.loss(scores, batch.y) / len(batch.y)
            loss.backward()
            for path, w in parameters.items():
                w.array = versions[-1][path]
            optimizer.lr = config.lr * trainer.lr_factor(step)
            optimizer.step()
            versions.append({path: w.array.copy() for path, w in parameters.items()})
            losses.append(loss.item())
    return losses, model.state_dict()


def check(
    config: Config,
    p: int,
    stop: tuple[int, int] | None = None,
    layer_of: Callable[[str], int] = first_name,
) -> list[Ended]:
    """All ranks agree with each other and with the simulation."""
    ended = threads.run(p, train, config, stop)
    losses, state = simulated(config, p, ended[0].result["steps"], layer_of)
    for found in ended:
        assert found.losses == ended[0].losses
        np.testing.assert_allclose(found.losses, losses, rtol=1e-10)
        assert found.state.keys() == state.keys()
        for path, wanted in state.items():
            scale = max(np.abs(wanted).max(), 1e-300)
            assert np.abs(found.state[path] - wanted).max() / scale < 1e-10, path
    return ended
