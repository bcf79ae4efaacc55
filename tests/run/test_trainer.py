"""The Trainer trains as a loop written by hand, and reports the right metrics."""

import copy
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.runs import equal, fit, images, rows, small

import nnmpi
from nnmpi import Config, Trainer, nn, optim
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.data import Dataset, Loader, Standardiser
from nnmpi.nn.models import digits_cnn
from nnmpi.nn.passes import Pass, current_pass
from nnmpi.optim import schedule

# ---- the loop


@contextmanager
def one_pass(step: int, samples: np.ndarray) -> Iterator[None]:
    token = current_pass.set(Pass(step, samples))
    try:
        yield
    finally:
        current_pass.reset(token)


def by_hand(c: Config, d: Dataset) -> tuple[nn.Module, float]:
    """The model after a plain loop, and the mean loss of the last epoch."""
    model = digits_cnn()
    model.seed = c.seed
    model.to(c.dtype)
    opt = {
        "adam": lambda p: optim.Adam(p, weight_decay=c.weight_decay),
        "adamw": lambda p: optim.AdamW(p, weight_decay=c.weight_decay),
        "sgd": lambda p: optim.SGD(p, c.lr, c.momentum, weight_decay=c.weight_decay),
        "rmsprop": lambda p: optim.RMSprop(p, weight_decay=c.weight_decay),
    }[c.optimizer](model.parameters())
    loader = Loader(
        d.train, c.batch_size, standardiser=Standardiser.of(d.train), dtype=c.dtype, seed=c.seed
    )
    factor = schedule.parse(c.lr_schedule, c.epochs * len(loader))
    criterion, step = nn.CrossEntropyLoss(), 0
    for epoch in range(c.epochs):
        total = samples = 0.0
        for batch in loader.epoch(epoch):
            with one_pass(step, batch.samples):
                loss = criterion(model(nnmpi.tensor(batch.x)), batch.y)
            opt.zero_grad()
            loss.backward()
            if c.clip_norm is not None:
                optim.clip_grad_norm(model.parameters(), c.clip_norm)
            opt.lr = c.lr * factor(step)
            opt.step()
            step += 1
            total += loss.item() * len(batch.y)
            samples += len(batch.y)
    return model, total / samples


LOOPS: dict[str, dict[str, Any]] = {
    "adam": {},
    "adamw with decay": {"optimizer": "adamw", "weight_decay": 0.1},
    "adam with decay": {"weight_decay": 0.1},
    "rmsprop": {"optimizer": "rmsprop"},
    "sgd": {"optimizer": "sgd", "momentum": 0.0, "lr": 0.1},
    "sgd with all": {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.1, "lr": 0.1},
    "clip": {"clip_norm": 0.1},
    "schedule": {"lr_schedule": "warmup:2+cosine"},
    "seed": {"seed": 5},
    "float64": {"dtype": "float64"},
}


@pytest.mark.parametrize("options", LOOPS.values(), ids=LOOPS)
def test_fit_equals_a_plain_loop(options: dict[str, Any]) -> None:
    """Bit for bit, with BatchNorm, dropout, a smaller last batch and evaluations between epochs.

    Clipping adds squares in another order, so that only its last bits differ.
    """
    d, c = images(), Config(epochs=2, batch_size=32, **options)
    trainer = Trainer(c, build=digits_cnn, data=d)
    result = fit(trainer)
    model, loss = by_hand(c, d)
    assert result["loss"] == pytest.approx(loss, rel=1e-6)
    assert (result["epochs"], result["steps"]) == (2, 6)
    if c.clip_norm is not None:
        for name, array in model.state_dict().items():
            np.testing.assert_allclose(trainer.model.state_dict()[name], array, 1e-4, 1e-6)
        return
    equal(trainer.model, model)
    parameters = dict(model.named_parameters())
    values = [a.numpy().tobytes() for name, a in model.state_dict().items() if name in parameters]
    assert result["parameters_sha256"] == hashlib.sha256(b"".join(values)).hexdigest()


def test_metrics_are_means_over_samples() -> None:
    """Not over batches: the last is smaller, and with sorted labels its loss differs."""
    x, y = rows()
    test = rows(31)
    order = np.argsort(test[1], kind="stable")
    config = Config(epochs=3, batch_size=10, lr=0.05)
    trainer = Trainer(config, small, (x, y, test[0][order], test[1][order]))
    result = fit(trainer)
    d = trainer.dataset
    scores = trainer.model(nnmpi.tensor(Standardiser.of(d.train).apply(d.test.x)))
    losses = nn.CrossEntropyLoss(reduction="none")(scores, d.test.y).numpy()
    right = int((scores.numpy().argmax(1) == d.test.y).sum())
    batches = [losses[i : i + 10].mean() for i in range(0, 31, 10)]
    assert result["test_loss"] == pytest.approx(losses.mean(), rel=1e-6)
    assert abs(np.mean(batches) - losses.mean()) > 1e-3 * losses.mean()
    assert result["accuracy"] == right / 31
    assert 0 < right < 31


def test_evaluation_changes_only_the_mode() -> None:
    trainer = Trainer(Config(epochs=1), digits_cnn, images())
    assert all(m.training for m in trainer.model.modules())
    fit(trainer)
    trainer.model.train()
    before = copy.deepcopy(trainer.model.state_dict())
    found = trainer.evaluate()
    assert not any(m.training for m in trainer.model.modules())
    assert trainer.evaluate() == found
    assert found.samples == len(trainer.dataset.test.y)
    for name, array in trainer.model.state_dict().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


# ---- the seed


def scaled() -> nn.Module:
    """A model with an initialisation of its own: weights are changed before they are in it."""
    layers = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
    for layer in layers[:2]:
        layer.weight.data *= 0.5
    return nn.Sequential(*layers)


def test_the_seed_is_that_of_weights_that_build_changes() -> None:
    def weights(seed: int) -> list[np.ndarray]:
        nn.Linear(2, 2)  # what was constructed before does not matter
        model = Trainer(Config(seed=seed), scaled, rows()).model
        return [layer.weight.data for layer in model]

    (a, b, c), again, other = weights(4), weights(4), weights(5)
    assert not np.array_equal(a, b)
    for mine, same, different in zip((a, b, c), again, other, strict=True):
        np.testing.assert_array_equal(mine, same)
        assert not np.isclose(mine, different).all()
    with nnmpi.seeded(4):
        np.testing.assert_array_equal(scaled()[1].weight.data, b)

    def verified(comm: Comm) -> Any:
        config = Config(steps=3, seed=4, verify=True, quiet=True)
        return fit(Trainer(config, scaled, rows(), comm))["steps"]

    assert threads.run(2, verified) == [3, 3]


def test_a_model_that_was_drawn_from_another_seed_is_refused() -> None:
    drawn = small().to("float32")
    assert Trainer(Config(), lambda: drawn, rows()).model is drawn
    with refused("Sequential.seed = 4", "1.weight", "drawn from seed 0", "nnmpi.seeded(4)"):
        Trainer(Config(seed=4), lambda: drawn, rows())


# ---- time


def test_one_step_has_no_rate() -> None:
    assert fit(Trainer(Config(steps=1), small, rows()))["samples_per_second"] == 0.0
