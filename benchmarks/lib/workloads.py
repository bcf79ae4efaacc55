"""Training steps of nnmpi and PyTorch on the workloads of lib.models, on one or several ranks."""

from collections.abc import Callable, Generator
from contextlib import closing
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

from lib.models import WORKLOADS, Batch, Workload, batch, drawn
from lib.timing import Step


def nnmpi_step(
    w: Workload,
    algorithm: str = "auto",
    device: str = "cpu",
    tf32: bool = False,
    compiled: bool = False,
    narrow: bool = False,
) -> Step:
    """A training step of nnmpi through its public interface, from a NumPy batch to the update; as
    it is written, or compiled, or `narrow`: with nnmpi.autocast in bfloat16."""
    import nnmpi
    from nnmpi import nn, optim
    from nnmpi.addons.cuda.tf32 import allow_tf32
    from nnmpi.arrays import backend, blas

    blas.tune()
    x, y = batch(w)
    on = backend.get(device)
    allow_tf32(on, tf32)
    model = nn.Sequential(*w.layers(nn))
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            m.algorithm = algorithm
    model.to("float32", on)
    for p, value in drawn(model.parameters()):
        p.data[...] = on.asarray(value)
    decay = {"weight_decay": w.weight_decay} if w.weight_decay else {}
    opt = (optim.AdamW if decay else optim.Adam)(model.parameters(), lr=1e-4, **decay)
    loss_of = nn.CrossEntropyLoss() if w.classes else nn.MSELoss()
    inputs = on.asarray(x)
    targets = y if w.classes else inputs

    def plain(x: Any, y: Any) -> Any:
        return loss_of(model(x), y)

    def narrowed(x: Any, y: Any) -> Any:
        with nnmpi.autocast(device, "bfloat16"):
            return plain(x, y)

    evaluate = narrowed if narrow else plain

    def step(x: Any, y: Any) -> Any:
        loss = evaluate(x, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    run = nnmpi.compile(step) if compiled else step
    return lambda: run(nnmpi.tensor(inputs, on=on), targets)


def trainer_step(w: Workload, dtype: str, device: str = "cpu", tf32: bool = False) -> Step:
    """A training step of nnmpi's Trainer, which in 16 bits has masters in float32; on a device, in
    epochs of several, since it reads the loss of the last one at once."""
    import nnmpi
    from nnmpi import comm, nn
    from nnmpi.arrays import blas

    blas.tune()
    x, y = batch(w)
    config = nnmpi.Config(
        batch_size=len(x),
        lr=1e-4,
        lr_schedule="constant",
        dtype=dtype,
        device=device,
        tf32=tf32,
        optimizer="adamw" if w.weight_decay else "adam",
        weight_decay=w.weight_decay,
        compile=True,  # a loss of one's own
    )
    targets = y if w.classes else x

    def loss_of_words(scores: Any, labels: Any) -> Any:
        return nn.functional.cross_entropy(scores, labels.reshape(-1))

    of_rows = nn.CrossEntropyLoss() if w.classes else nn.MSELoss()
    loss = loss_of_words if w.are_words else of_rows

    once = x, targets.reshape(len(x), -1) if w.are_words else targets
    data = [np.concatenate([a] * (1 if device == "cpu" else 16)) for a in once]

    def build() -> Any:
        return nn.Sequential(*w.layers(nn))

    trainer = nnmpi.Trainer(config, build, (*data, *once), comm.comm_self(), loss=loss)
    made = endless(trainer)
    return lambda: np.float64(next(made).loss)


def torch_step(
    w: Workload,
    best: bool,
    device: str = "cpu",
    tf32: bool = False,
    compiled: bool = False,
    narrow: str = "",
    mode: str = "default",
) -> Step:
    """A training step of PyTorch, as users write it or at its `best`: channels_last, fused Adam.

    compiled: the model and its loss, both ways, by torch.compile in this `mode`
    narrow:   autocast: what torch.autocast takes in bfloat16; pure: all but the loss, no masters
    """
    import torch
    from torch import nn

    torch.set_num_threads(1)
    if device != "cpu":  # flags of all of PyTorch, which its own tests freeze
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    x, y = (torch.from_numpy(a).to(device) for a in batch(w))
    is_pure, half = narrow == "pure", torch.bfloat16
    model = nn.Sequential(*w.layers(nn)).to(device, half if is_pure else torch.float32)
    with torch.no_grad():
        for p, value in drawn(model.parameters()):
            p.copy_(torch.from_numpy(value))
    if best and w.has_images:
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    rule: Any = torch.optim.AdamW if w.weight_decay else torch.optim.Adam
    opt = rule(model.parameters(), 1e-4, weight_decay=w.weight_decay, fused=best or None)
    criterion = nn.CrossEntropyLoss() if w.classes else nn.MSELoss()
    targets = y if w.classes else x
    if is_pure and not w.are_words:
        x = x.to(half)

    def loss_of(x: Any, y: Any) -> Any:
        with torch.autocast(device, half, enabled=narrow == "autocast"):
            scores = model(x)
            return criterion(scores.float() if is_pure else scores, y)

    evaluate = torch.compile(loss_of, mode=mode) if compiled else loss_of

    def step() -> Any:
        opt.zero_grad()
        loss = evaluate(x, targets)
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

TRAINED: dict[str, dict[str, Any]] = {
    "W1": {"model": MODELS["W1"], "data": "synthetic:1x28x28:10:6400", "batch_size": 64},
    "W2": {"model": MODELS["W2"], "data": "synthetic:784:10:12800", "batch_size": 128},
}
"""Options of these workloads, with a batch for all ranks."""


class Reduction(NamedTuple):
    """How gradients are all-reduced; `overlap` with the backward pass, or not `enabled` at all."""

    algorithm: str = "auto"
    overlap: bool = True
    enabled: bool = True


def samples(w: Workload, count: int) -> tuple[np.ndarray, np.ndarray]:
    """A number of random samples and labels, the same for every library."""
    return batch(w._replace(shape=(count, *w.shape[1:])))


def batches_of(case: str, per_rank: int, ranks: int, rank: int) -> list[Batch]:
    """This rank's part of each batch."""
    x, y = samples(WORKLOADS[case], BATCHES * per_rank * ranks)
    firsts = [(i * ranks + rank) * per_rank for i in range(BATCHES)]
    return [(x[first : first + per_rank], y[first : first + per_rank]) for first in firsts]


def nnmpi_steps(case: str, per_rank: int, reduction: Reduction) -> Steps:
    """Training steps of nnmpi's trainer with `per_rank` samples on each rank.

    Without reduction, every rank trains a model of its own.
    """
    import nnmpi
    from nnmpi import comm
    from nnmpi.arrays import blas

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
    config: Any, build: Callable[[], Any], shape: tuple[int, ...], tests: int, comm: Any, words: int
) -> Any:
    """An nnmpi.Trainer on random samples: `shape[0]` to train on, `tests` of them to test.

    Samples are numbers, with a class each, or so many different words, with a label for each.
    """
    import nnmpi

    draws = np.random.default_rng(0)
    if words:
        x, y = (draws.integers(0, words, shape) for _ in range(2))
    else:
        x, y = draws.standard_normal(shape, dtype=np.float32), draws.integers(0, CLASSES, shape[0])
    return nnmpi.Trainer(config, build, (x, y, x[:tests], y[:tests]), comm)


def endless(trainer: Any) -> Generator[Any, None, None]:
    """Makes steps of an nnmpi.Trainer, epoch after epoch; gives the result of each."""
    from nnmpi.parallel.step.executor import StepState

    trainer.model.train()
    state = StepState()
    while True:
        for result in trainer.strategy.steps(trainer.train, state):
            state = result.state
            yield result


def trainer_steps(trainer: Any) -> Steps:
    """Steps of an nnmpi.Trainer, from the first one on at each call."""

    def run(steps: int) -> None:
        with closing(endless(trainer)) as made:  # so that nothing continues between rounds
            for _ in islice(made, steps):
                pass

    return run


def torch_steps(case: str, per_rank: int, ranks: int, rank: int, best: bool) -> Steps:
    """Training steps of PyTorch's DistributedDataParallel, as users write it, or at its `best`.

    That is with channels_last, fused Adam, and gradients as views of the buckets.
    """
    import torch
    from torch import nn

    w = WORKLOADS[case]
    form = torch.channels_last if best and w.has_images else torch.contiguous_format
    model: Any = nn.Sequential(*w.layers(nn)).to(memory_format=form)
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=best)
    opt = torch.optim.Adam(model.parameters(), RATE, **({"fused": True} if best else {}))
    loss_of = nn.CrossEntropyLoss()
    found = batches_of(case, per_rank, ranks, rank)
    tensors = [tuple(map(torch.from_numpy, pair)) for pair in found]
    batches = cycle([(x.contiguous(memory_format=form), y) for x, y in tensors])

    def run(steps: int) -> None:
        for inputs, labels in islice(batches, steps):
            opt.zero_grad()
            loss = loss_of(model(inputs), labels)
            loss.backward()
            opt.step()
            loss.item()

    return run
