"""GPTs on the embedded text, in 32 and 16 bits: python benchmarks/text_training.py [--json F]

    nnmpi      what `python -m nnmpi.train --model M --data text` makes     nnmpi bfloat16
    torch      PyTorch                                                      autocast: in bfloat16

PyTorch starts from nnmpi's weights of the same seed, and takes the same batches with Adam and the
same learning rates. The losses of a token are told after each epoch, and for each subject those of
all seeds after the last one. A seed draws weights and the order of batches. In float32 both
libraries agree up to what rounding becomes over a thousand steps; how far runs are apart whose
weights differ in the third digit is what seeds show, and what losses in bfloat16 are beside.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from lib import models, timing
from lib.timing import Row


class Losses(NamedTuple):
    """The mean loss of a token over an epoch's training, and after it on the test data."""

    train: float
    test: float


def trainer_of(a: argparse.Namespace, seed: int, dtype: str = "float32") -> Any:
    """The Trainer of the command."""
    import nnmpi

    return nnmpi.Trainer(
        nnmpi.Config(
            model=a.model,
            data=a.data,
            epochs=a.epochs,
            batch_size=a.batch_size,
            lr_schedule=a.lr_schedule,
            seed=seed,
            dtype=dtype,
        )
    )


def torch_model(trainer: Any) -> Any:
    """PyTorch's model with the weights that nnmpi's starts from."""
    import torch

    x, words = trainer.train.split.x, trainer.model.wte.num_embeddings
    layers, heads, width = map(int, trainer.config.model.removeprefix("gpt:").split("x"))
    model = torch.nn.Sequential(*models.gpt(torch.nn, layers, heads, width, words, x.shape[1]))
    pairs = zip(model.parameters(), trainer.model.parameters(), strict=True)
    with torch.no_grad():
        for p, ours in pairs:
            p.copy_(torch.from_numpy(np.array(ours.data)))
    return model


def torch_losses(a: argparse.Namespace, seed: int, narrow: bool = False) -> Iterator[Losses]:
    """The losses of PyTorch; narrow: products and what torch.autocast takes in bfloat16."""
    import torch
    from torch.nn.functional import cross_entropy

    from nnmpi.optim import schedule

    torch.set_num_threads(1)
    trainer = trainer_of(a, seed)
    model, total = torch_model(trainer), a.epochs * len(trainer.train)
    opt = torch.optim.Adam(model.parameters(), trainer.config.lr, fused=True)
    rates = torch.optim.lr_scheduler.LambdaLR(opt, schedule.parse(a.lr_schedule, total))

    def loss_of(loader: Any, rows: np.ndarray) -> Any:
        x, y = (torch.from_numpy(part[rows]) for part in loader.split)
        with torch.autocast("cpu", torch.bfloat16) if narrow else nullcontext():
            return cross_entropy(model(x), y.reshape(-1))

    for epoch in range(a.epochs):
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
        yield Losses(mean(losses), mean(tested))


def mean(parts: list[tuple[float, int]]) -> float:
    """The mean over samples of means over batches."""
    return sum(loss * n for loss, n in parts) / sum(n for _, n in parts)


def our_losses(a: argparse.Namespace, seed: int, dtype: str = "float32") -> list[Losses]:
    """The losses of nnmpi."""
    from nnmpi.io.output.report import Report

    found = []

    class Epochs(Report):
        def event(self, event: dict[str, Any]) -> None:
            if event["event"] == "epoch":
                found.append(Losses(event["loss"], event["test_loss"]))

    trainer_of(a, seed, dtype).fit(Epochs(quiet=True))
    return found


SUBJECTS: dict[str, Callable[[argparse.Namespace, int], Iterator[Losses] | list[Losses]]] = {
    "nnmpi": our_losses,
    "nnmpi bfloat16": lambda a, seed: our_losses(a, seed, "bfloat16"),
    "torch": torch_losses,
    "autocast": lambda a, seed: torch_losses(a, seed, narrow=True),
}
"""The losses after each epoch of each subject."""


def rows_of(a: argparse.Namespace) -> Iterator[Row]:
    """A row for each epoch of each subject and seed, told when it is there."""
    setting = {k: vars(a)[k] for k in ("model", "data", "batch_size", "epochs", "lr_schedule")}
    for seed in a.seeds:
        for subject in a.subjects:
            for epoch, losses in enumerate(SUBJECTS[subject](a, seed), 1):
                told = f"loss {losses.train:.4f}   test loss {losses.test:.4f}"
                print(f"seed {seed}   {subject:14}   epoch {epoch:3}   {told}", flush=True)
                row = {"benchmark": "text", **setting, "subject": subject, "seed": seed}
                yield row | {"epoch": epoch, "loss": losses.train, "test_loss": losses.test}


def last_losses(rows: Sequence[Row]) -> Iterator[str]:
    """The test losses of each subject after the last epoch: their mean, and those of all seeds."""
    for subject in dict.fromkeys(row["subject"] for row in rows):
        of_seeds = {row["seed"]: row["test_loss"] for row in rows if row["subject"] == subject}
        losses = [*of_seeds.values()]
        deviation = f" +- {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
        told = " ".join(f"{loss:.4f}" for loss in losses)
        yield f"{subject:14}   {statistics.mean(losses):.4f}{deviation}   {told}"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--model", default="gpt:4x4x128")
    p.add_argument("--data", default="text", help="text or text:FILE")
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--lr-schedule", default="cosine", help="as of python -m nnmpi.train")
    p.add_argument("--seeds", default="0", help="0,1,2")
    p.add_argument("--subjects", default="nnmpi,torch", help=f"of {', '.join(SUBJECTS)}")
    p.add_argument("--json", help="write one row per epoch")
    a = p.parse_args(argv)
    a.seeds, a.subjects = [int(seed) for seed in a.seeds.split(",")], a.subjects.split(",")
    if unknown := set(a.subjects) - set(SUBJECTS):
        p.error(f"--subjects {','.join(sorted(unknown))}: they are {', '.join(SUBJECTS)}")
    return a


def main() -> None:
    """Train all subjects with all seeds, and print their losses."""
    a = parse()
    rows = [*rows_of(a)]
    print(*last_losses(rows), sep="\n")
    timing.finish(a.json, rows)


if __name__ == "__main__":
    main()
