"""What a loss of the user's own has to keep on any number of ranks: functions of a Comm."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.once import by_first, once

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm, comm_self
from nnmpi.io.output import Event, NullReport

BOUND = 1e-10
N, CLASSES, BATCH = 30, 4, 4
RNG = np.random.default_rng(3)
X = RNG.standard_normal((N, 5))
MOSTLY_IGNORED = np.where(RNG.random(N) < 0.7, -100, np.arange(N) % CLASSES)
NUMBERS = RNG.standard_normal((N, 3))
COLUMN = NUMBERS[:, 0]
IMAGES = RNG.standard_normal((N, 2, 3, 4))
SEQUENCES = IMAGES.reshape(N, 2, 12)
PIXELS = np.where(IMAGES[:, 1] > 1, -100, (IMAGES[:, 0] > 0) + 2 * (IMAGES[:, 1] > 0))
WORDS = RNG.integers(0, 15, (N, 6))
LENGTHS = RNG.integers(1, 7, N)  # behind them, positions do not count
NEXT = np.where(np.arange(6) < LENGTHS[:, None], (WORDS * 3 + 1) % CLASSES, -100)


def errors(scores: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    return abs(scores - targets).sum(), targets.size


def above_mean(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """It needs all scores of a sample."""
    kept = labels >= 0
    chosen = scores[np.arange(len(labels)), labels * kept]
    return ((chosen > scores.mean(1)) & kept).sum(), kept.sum()


def net(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, outputs)
    )


def of_sequences(outputs: int) -> nn.Module:
    wide = nn.Conv1d(2, 8, 3, padding="same"), nn.Tanh(), nn.Conv1d(8, 6, 3), nn.MaxPool1d(2)
    return nn.Sequential(*wide, nn.Flatten(), nn.Linear(30, outputs))


def scores_of_pixels(outputs: int) -> nn.Module:
    wide = nn.Conv2d(2, 8, 3, padding="same"), nn.Tanh(), nn.Conv2d(8, 6, 3, padding="same")
    return nn.Sequential(*wide, nn.Tanh(), nn.Conv2d(6, outputs, 1))


def scores_of_positions(outputs: int) -> nn.Module:
    wide = nn.Conv1d(2, 8, 3, padding="same"), nn.Tanh(), nn.Conv1d(8, 6, 3, padding="same")
    return nn.Sequential(*wide, nn.Tanh(), nn.Conv1d(6, outputs, 1))


def of_words(outputs: int) -> nn.Module:
    wide = nn.Embedding(15, 3, padding_idx=2), nn.Flatten(), nn.Linear(18, 8), nn.Tanh()
    return nn.Sequential(*wide, nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, outputs))


class ClassesFirst(nn.Module):
    """(N, L, C) as (N, C, L)."""

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        return x.transpose(0, 2, 1)


def of_each_word(outputs: int) -> nn.Module:
    wide = nn.Embedding(15, 6), nn.Linear(6, 8), nn.Dropout(0.2), nn.Tanh()
    return nn.Sequential(*wide, nn.Linear(8, outputs), ClassesFirst())


class Joined(nn.Module):
    """Words, a table and a number, with which the model is called."""

    def __init__(self) -> None:
        self.embed, self.table = nn.Embedding(15, 8), nn.Linear(5, 8)

    def forward(self, words: Any, table: Any, scale: Any = 1.0) -> nnmpi.Tensor:
        factor = scale if isinstance(scale, float) else scale.reshape(-1, 1)
        return self.embed(words).mean(1) + self.table(table) * factor


def of_several(outputs: int) -> nn.Module:
    narrow = nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, outputs)
    return nn.Sequential(Joined(), *narrow)


class Goal(NamedTuple):
    """Labels or targets, and what to make of them."""

    y: np.ndarray
    outputs: int
    loss: Callable[[], Any]
    metrics: dict[str, Any]
    x: Any = X
    net: Callable[[int], nn.Module] = net
    shards: bool = True  # whether tp knows its layers


def classes() -> nn.CrossEntropyLoss:
    return nn.CrossEntropyLoss(np.array([0.5, 2.0, 1.0, 3.0]), label_smoothing=0.2)


def distance(scores: nnmpi.Tensor, targets: np.ndarray) -> nnmpi.Tensor:
    return ((scores.reshape(len(scores)) - targets) ** 2).mean()


GOALS = {
    "classes": Goal(MOSTLY_IGNORED, CLASSES, classes, {"above mean": above_mean}),
    "squares": Goal(NUMBERS, 3, nn.MSELoss, {"error": errors}, SEQUENCES, of_sequences),
    "function": Goal(COLUMN, 2, lambda: lambda s, y: distance(s[:, :1], y), {}),
    "pixels": Goal(PIXELS, CLASSES, classes, {}, IMAGES, scores_of_pixels),
    "positions": Goal(PIXELS.reshape(N, 12), 4, classes, {}, SEQUENCES, scores_of_positions),
    "embedding": Goal(NEXT[:, 0], CLASSES, nn.CrossEntropyLoss, {}, WORDS, of_words),
    "words": Goal(NEXT, CLASSES, nn.CrossEntropyLoss, {}, WORDS, of_each_word, shards=False),
    "a tuple": Goal(NUMBERS, 3, nn.MSELoss, {}, (WORDS, X), of_several, shards=False),
    "a dict": Goal(
        MOSTLY_IGNORED,
        CLASSES,
        classes,
        {},
        {"scale": COLUMN, "words": WORDS.astype("uint16"), "table": X},
        of_several,
        shards=False,
    ),
}


class Trained(NamedTuple):
    """What came out of a run."""

    event: Event
    state: dict[str, np.ndarray]


def train(comm: Comm, goal: str, **options: Any) -> Trained:
    y, outputs, loss, metrics, x, net, _ = GOALS[goal]
    config = Config(
        **{"dtype": "float64", "batch_size": BATCH, "epochs": 2, "lr": 0.02, "seed": 1, **options}
    )
    found: list[dict[str, np.ndarray]] = []

    class Keep:
        def on_epoch(self, trainer: Trainer, event: Event) -> None:
            arrays = trainer.strategy.full_state.on_all_ranks()
            found.append({name: np.array(a) for name, a in arrays})

    own = {"loss": loss(), "metrics": metrics, "callbacks": [Keep()]}
    trainer = Trainer(config, lambda: net(outputs), (x, y), comm, **own)
    event = trainer.fit(NullReport())
    return Trained(event, found[-1])


@once
def one_rank(goal: str, options: tuple[tuple[str, Any], ...]) -> Trained:
    return train(comm_self(), goal, **dict(options))


def trains_as_one_rank(
    comm: Comm, goal: str, layout: dict[str, Any], same: dict[str, Any] | None = None
) -> None:
    """`same` are options of the one rank, too."""
    same = same or {}
    wanted = by_first(comm, lambda: one_rank(goal, tuple(same.items())))
    got = train(comm, goal, **layout, **same)
    for path, array in wanted.state.items():
        np.testing.assert_allclose(got.state[path], array, rtol=0, atol=BOUND * abs(array).max())
    for name in ("loss", "test_loss"):
        assert got.event[name] == pytest.approx(wanted.event[name], rel=BOUND)
    assert got.event.get("accuracy") == wanted.event.get("accuracy")
    assert got.event.get("metrics", {}) == pytest.approx(wanted.event.get("metrics", {}), rel=BOUND)


def trains_as_one_rank_in_16_bits(comm: Comm, goal: str, layout: dict[str, Any]) -> None:
    """Losses, within what six steps in bfloat16 make of its rounding."""
    wanted = by_first(comm, lambda: one_rank(goal, (("dtype", "bfloat16"),)))
    got = train(comm, goal, dtype="bfloat16", **layout)
    for name in ("loss", "test_loss"):
        assert got.event[name] == pytest.approx(wanted.event[name], rel=3e-2)


def gives_the_same_bits(comm: Comm, name: str) -> None:
    options = {"reproducible": True, "slices": 3}
    wanted, got = one_rank(name, tuple(options.items())), train(comm, name, **options)
    assert got.event["parameters_sha256"] == wanted.event["parameters_sha256"]
    assert got.event["loss"] == wanted.event["loss"]


def equals_a_loop(comm: Comm) -> None:
    """The means over batches, as a loop in PyTorch's way has them."""
    trained = train(comm, "classes", optimizer="sgd", epochs=1, lr_schedule="constant")
    config = Config(dtype="float64", batch_size=BATCH, seed=1)
    data = (X, GOALS["classes"].y)
    trainer = Trainer(config, lambda: net(CLASSES), data, comm_self(), loss=classes())
    model = trainer.model
    opt = nnmpi.optim.SGD(model.parameters(), 0.02, momentum=config.momentum)
    loss_of, ignored = classes(), 0
    for batch in trainer.train.epoch(0):
        opt.zero_grad()
        loss_of(model(nnmpi.tensor(batch.x)), batch.y).backward()
        opt.step()
        ignored += not (batch.y >= 0).any()
    assert ignored  # a batch of ignored labels alone changes nothing
    for path, array in model.state_dict().items():
        np.testing.assert_allclose(trained.state[path], array, rtol=1e-10, atol=1e-13)
