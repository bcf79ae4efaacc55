"""What the events of a run tell: rate, time, gradient and learning rate; options and machines."""

import dataclasses
import math
import platform
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from helpers.runs import but_steps, rows, small
from helpers.training.pipelined import Heard

import nnmpi
from nnmpi import Config, Trainer, nn, optim
from nnmpi.arrays import blas, native
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.options.config import EPOCHS, LEAST_STEPS
from nnmpi.run.setup.setup import total_steps

OPTIONS: dict[str, Any] = {"epochs": 2, "batch_size": 14, "dtype": "float64", "lr": 0.05}


def events_of(comm: Comm, build: Any = small, **options: Any) -> list[dict[str, Any]]:
    heard = Heard()
    Trainer(Config(**{**OPTIONS, **options}), build, rows(), comm).fit(heard)
    return heard.events


def test_an_epoch_has_the_mean_norm_of_its_gradients_before_clipping() -> None:
    """Against a loop written by hand."""
    trainer = Trainer(Config(**OPTIONS, clip_norm=0.1), small, rows(), comm_self())
    model, loader = trainer.model, trainer.train
    clone = small().to("float64")
    clone.load_state_dict(model.state_dict())
    opt, criterion, found = optim.Adam(clone.parameters()), nn.CrossEntropyLoss(), list[float]()
    for step, batch in enumerate(batch for epoch in range(2) for batch in loader.epoch(epoch)):
        opt.zero_grad()
        criterion(clone(nnmpi.tensor(batch.x)), batch.y).backward()
        found.append(float(optim.clip_grad_norm(clone.parameters(), 0.1)))
        opt.lr = 0.05 * trainer.lr_factor(step)
        opt.step()
    heard = Heard()
    trainer.fit(heard)
    first, second = (e for e in heard.events if e["event"] == "epoch")
    assert first["mean_gradient_norm"] == pytest.approx(np.mean(found[:4]), rel=1e-10)
    assert second["mean_gradient_norm"] == pytest.approx(np.mean(found[4:]), rel=1e-10)
    assert min(found) > 0.1


@pytest.mark.parametrize("zero", [2, 3])
def test_the_norm_counts_no_padding_of_gradients(zero: int) -> None:
    """Buckets of different lengths use one memory in turn: padding has been gradients."""

    def build() -> nn.Module:
        pairs = pairwise((6, 7, 5, 11, 3))
        return nn.Sequential(*(nn.Sequential(nn.Linear(n, m), nn.Tanh()) for n, m in pairs))

    def norms(comm: Comm, **options: Any) -> list[float]:
        events = events_of(comm, build, **options)
        return [e["mean_gradient_norm"] for e in events if e["event"] == "epoch"]

    wanted = norms(comm_self())
    for found in threads.run(2, lambda comm: norms(comm, zero=zero, bucket_mb=1e-5)):
        assert found == pytest.approx(wanted, rel=1e-10)


def test_an_epoch_has_its_time_its_rate_and_its_learning_rate() -> None:
    start, first, second, done = but_steps(events_of(comm_self()))
    assert 0 < first["seconds"] < second["seconds"] <= done["seconds"]
    assert min(e["epoch_samples_per_second"] for e in (first, second)) > 0
    assert first["epoch_samples_per_second"] == first["samples_per_second"]
    rates = [0.05 * (1 + math.cos(math.pi * step / 8)) / 2 for step in (3, 7)]
    assert [first["lr"], second["lr"]] == pytest.approx(rates)
    assert start["steps"] == 8


def test_the_start_tells_options_versions_blas_and_hosts() -> None:
    start = events_of(comm_self(), clip_norm=0.5)[0]
    assert Config(**start["options"]) == Config(**OPTIONS, clip_norm=0.5, model="small")
    assert start["options"].keys() == {o.name for o in dataclasses.fields(Config)}
    assert start["versions"].items() >= {
        ("nnmpi", nnmpi.__version__),
        ("python", platform.python_version()),
        ("numpy", np.__version__),
    }
    assert start["blas"].items() >= {("kernels", blas.core()), ("threads", blas.threads())}
    assert start["native"] == native.INSTRUCTIONS
    assert start["hosts"] == {platform.node(): [0]}


def test_the_start_tells_all_ranks_of_a_host() -> None:
    starts = threads.run(3, lambda comm: events_of(comm, steps=1, epochs=None)[:1])
    assert starts[0][0]["hosts"] == {platform.node(): [0, 1, 2]}


def test_a_run_makes_ten_epochs_or_three_hundred_steps() -> None:
    for options, batches, wanted in (
        ({}, 125, 10 * 125),
        ({}, 2, 150 * 2),
        ({}, 23, 14 * 23),
        ({"epochs": 3}, 2, 6),
        ({"steps": 7}, 2, 7),
        ({"steps": 5000}, 2, 5000),
        ({"steps": 5, "epochs": 3}, 2, 5),
        ({"steps": 9, "epochs": 3}, 2, 6),
    ):
        assert total_steps(Config(**options), batches) == wanted
    assert (EPOCHS, LEAST_STEPS) == (10, 300)
