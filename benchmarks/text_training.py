"""A GPT on the embedded text by nnmpi and by PyTorch: python benchmarks/text_training.py [--json F]

Both start from the same weights and take the same batches with Adam and the same learning rates,
those of `python -m nnmpi.train --model gpt:4x4x128 --data text`. Losses of a token after each epoch
are told side by side; they agree up to what rounding in float32 becomes over a thousand steps.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from lib import models, timing
from lib.timing import Row

SIZES = (4, 4, 128)
TEST_BATCH = 64


def trainer_of(epochs: int) -> Any:
    """The Trainer of the command."""
    import nnmpi

    model = "gpt:" + "x".join(map(str, SIZES))
    return nnmpi.Trainer(nnmpi.Config(model=model, data="text", epochs=epochs))


def torch_model(trainer: Any) -> Any:
    """PyTorch's model with the weights that nnmpi's starts from."""
    import torch

    x, words = trainer.train.split.x, trainer.model.wte.num_embeddings
    model = torch.nn.Sequential(*models.gpt(torch.nn, *SIZES, words, x.shape[1]))
    pairs = zip(model.parameters(), trainer.model.parameters(), strict=True)
    with torch.no_grad():
        for p, ours in pairs:
            p.copy_(torch.from_numpy(np.array(ours.data)))
    return model


def torch_losses(trainer: Any, model: Any, epochs: int) -> Iterator[tuple[float, float]]:
    """The mean loss of a token over each epoch's training, and after it on the test data."""
    import torch
    from torch.nn.functional import cross_entropy

    opt = torch.optim.Adam(model.parameters(), trainer.config.lr, fused=True)
    total = epochs * len(trainer.train)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total)

    def loss_of(loader: Any, rows: np.ndarray) -> Any:
        x, y = (torch.from_numpy(a[rows]) for a in loader.split)
        return cross_entropy(model(x), y.reshape(-1))

    for epoch in range(epochs):
        losses, tested = [], []
        for rows in trainer.train.batches(epoch):
            loss = loss_of(trainer.train, rows)
            opt.zero_grad()
            loss.backward()
            opt.step()
            rates.step()
            losses.append((loss.item(), len(rows)))
        with torch.no_grad():
            for rows in trainer.test.batches(0):
                tested.append((loss_of(trainer.test, rows).item(), len(rows)))
        yield mean(losses), mean(tested)


def mean(parts: list[tuple[float, int]]) -> float:
    """The mean over samples of means over batches."""
    return sum(loss * n for loss, n in parts) / sum(n for _, n in parts)


def our_losses(trainer: Any) -> list[tuple[float, float]]:
    """The same of nnmpi's run."""
    from nnmpi.run.report.report import Report

    found = []

    class Losses(Report):
        def event(self, event: dict[str, Any]) -> None:
            if event["event"] == "epoch":
                found.append((event["loss"], event["test_loss"]))

    trainer.fit(Losses(quiet=True))
    return found


def main() -> None:
    """Train both, and print the losses of each epoch."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--json", help="write one row per epoch")
    a = p.parse_args()
    trainer = trainer_of(a.epochs)
    model = torch_model(trainer)
    rows: list[Row] = []
    print("epoch   loss: nnmpi  PyTorch   test loss: nnmpi  PyTorch")
    pairs = zip(our_losses(trainer), torch_losses(trainer, model, a.epochs), strict=True)
    for epoch, (ours, theirs) in enumerate(pairs, 1):
        row: Row = {"benchmark": "text", "epoch": epoch, "loss": ours[0], "test_loss": ours[1]}
        rows.append(row | {"torch_loss": theirs[0], "torch_test_loss": theirs[1]})
        print(f"{epoch:5} {ours[0]:13.4f} {theirs[0]:8.4f} {ours[1]:18.4f} {theirs[1]:8.4f}")
    timing.finish(a.json, rows)


if __name__ == "__main__":
    main()
