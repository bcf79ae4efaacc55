"""The four training steps that are timed, with the same model in nnmpi and PyTorch.

W1  mnist-cnn on 1x28x28, batch 64         W3  MLP 4-50-3, batch 64
W2  MLP 784-1024-1024-10, batch 128        W4  CNN 64-128-256 on 3x32x32, batch 64
"""

from collections.abc import Callable, Generator
from contextlib import closing
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

from lib.timing import Step


class Workload(NamedTuple):
    """The shape of a batch, the classes, convolution channels and widths of the linear layers."""

    shape: tuple[int, ...]
    classes: int
    channels: tuple[int, ...]
    widths: tuple[int, ...]


WORKLOADS = {
    "W1": Workload((64, 1, 28, 28), 10, (1, 32, 64), (3136, 128, 64, 10)),
    "W2": Workload((128, 784), 10, (), (784, 1024, 1024, 10)),
    "W3": Workload((64, 4), 3, (), (4, 50, 3)),
    "W4": Workload((64, 3, 32, 32), 10, (3, 64, 128, 256), (4096, 256, 10)),
}


def batch(w: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Random samples and labels; the time does not depend on their values."""
    rng = np.random.default_rng(0)
    return rng.standard_normal(w.shape, dtype=np.float32), rng.integers(0, w.classes, w.shape[0])


def layers(nn: Any, w: Workload) -> list[Any]:
    """The layers of the model from either library's `nn`, whose interfaces are the same."""
    made: list[Any] = []
    for c, o in zip(w.channels, w.channels[1:], strict=False):
        made += [nn.Conv2d(c, o, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    if w.channels:
        made.append(nn.Flatten())
    for i, (k, o) in enumerate(zip(w.widths, w.widths[1:], strict=False)):
        made += [nn.ReLU()] if i else []
        made.append(nn.Linear(k, o))
    return made


def nnmpi_step(w: Workload, algorithm: str = "auto", device: str = "cpu") -> Step:
    """A training step of nnmpi through its public interface, from a NumPy batch to the update."""
    import nnmpi
    from nnmpi import backend, blas, nn, optim

    blas.tune()
    x, y = batch(w)
    on = backend.get(device)
    model = nn.Sequential(*layers(nn, w))
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            m.algorithm = algorithm
    model.to("float32", on)
    opt, loss_of = optim.Adam(model.parameters(), lr=1e-4), nn.CrossEntropyLoss()
    inputs = on.asarray(x)

    def step() -> Any:
        loss = loss_of(model(nnmpi.tensor(inputs, on=on)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return step


def torch_step(w: Workload, best: bool, device: str = "cpu") -> Step:
    """A training step of PyTorch, as users write it or at its `best`: channels_last, fused Adam."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    x, y = (torch.from_numpy(a).to(device) for a in batch(w))
    model = nn.Sequential(*layers(nn, w)).to(device)
    if best and w.channels:
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    opt = torch.optim.Adam(model.parameters(), 1e-4, **({"fused": True} if best else {}))
    loss_of = nn.CrossEntropyLoss()

    def step() -> Any:
        opt.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        opt.step()
        return loss

    return step


# ---- steps on several ranks

Steps = Callable[[int], None]
"""Runs a number of training steps."""

BATCHES = 4
"""The number of batches, which are made once and used in turn."""

RATE = 1e-3

MODELS = {"W1": "mnist-cnn", "W2": "mlp:784-1024-1024-10"}
"""nnmpi's model names of the workloads that are timed on several ranks."""


class Reduction(NamedTuple):
    """How gradients are all-reduced; `overlap` with the backward pass, or not `enabled` at all."""

    algorithm: str = "auto"
    overlap: bool = True
    enabled: bool = True


def samples(w: Workload, count: int) -> tuple[np.ndarray, np.ndarray]:
    """A number of random samples and labels, the same for every library."""
    return batch(w._replace(shape=(count, *w.shape[1:])))


def nnmpi_steps(case: str, per_rank: int, reduction: Reduction) -> Steps:
    """Training steps of nnmpi's trainer with `per_rank` samples on each rank.

    Without reduction, every rank trains a model of its own.
    """
    import nnmpi
    from nnmpi import blas, comm

    blas.tune()
    ranks = comm.world() if reduction.enabled else comm.comm_self()
    batch_size = per_rank * ranks.size
    data = samples(WORKLOADS[case], BATCHES * batch_size)
    config = nnmpi.Config(
        model=MODELS[case],
        batch_size=batch_size,
        lr=RATE,
        lr_schedule="constant",
        allreduce=reduction.algorithm,
        overlap=reduction.overlap,
    )
    trainer = nnmpi.Trainer(config, data=(*data, *data), comm=ranks)
    return trainer_steps(trainer)


CLASSES = 10
"""Of random labels."""


def random_trainer(
    config: Any, build: Callable[[], Any], shape: tuple[int, ...], tests: int, comm: Any
) -> Any:
    """An nnmpi.Trainer on random samples: `shape[0]` to train on, `tests` of them to test."""
    import nnmpi

    draws = np.random.default_rng(0)
    x, y = draws.standard_normal(shape, dtype=np.float32), draws.integers(0, CLASSES, shape[0])
    return nnmpi.Trainer(config, build, (x, y, x[:tests], y[:tests]), comm)


def trainer_steps(trainer: Any) -> Steps:
    """Steps of an nnmpi.Trainer, epoch after epoch."""
    from nnmpi.parallel.step.executor import StepState

    trainer.model.train()

    def epochs() -> Generator[object, None, None]:
        state = StepState()
        while True:
            for result in trainer.strategy.steps(trainer.train, state):
                state = result.state
                yield result

    def run(steps: int) -> None:
        with closing(epochs()) as epoch_steps:  # so that nothing continues between rounds
            for _ in islice(epoch_steps, steps):
                pass

    return run


def torch_steps(case: str, per_rank: int, ranks: int, rank: int, best: bool) -> Steps:
    """Training steps of PyTorch's DistributedDataParallel, as users write it, or at its `best`.

    That is with channels_last, fused Adam, and gradients as views of the buckets.
    """
    import torch
    from torch import nn

    w = WORKLOADS[case]
    form = torch.channels_last if best and w.channels else torch.contiguous_format
    model: Any = nn.Sequential(*layers(nn, w)).to(memory_format=form)
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=best)
    opt = torch.optim.Adam(model.parameters(), RATE, **({"fused": True} if best else {}))
    loss_of = nn.CrossEntropyLoss()
    x, y = (torch.from_numpy(a) for a in samples(w, BATCHES * per_rank * ranks))
    parts = [
        slice((i * ranks + rank) * per_rank, (i * ranks + rank + 1) * per_rank)
        for i in range(BATCHES)
    ]
    batches = cycle([(x[p].contiguous(memory_format=form), y[p]) for p in parts])

    def run(steps: int) -> None:
        for inputs, labels in islice(batches, steps):
            opt.zero_grad()
            loss = loss_of(model(inputs), labels)
            loss.backward()
            opt.step()
            loss.item()

    return run
