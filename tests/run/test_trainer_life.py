"""A Trainer between its first run and `close`: outputs, files, and further epochs."""

import gc
import io
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import runs
from helpers.datafiles import refused
from helpers.runs import but_steps, fit, rows, small

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.data import Standardiser
from nnmpi.io.output import Event, NullReport, Report
from nnmpi.parallel.strategy import AgreedError

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    **runs.LAYOUTS,
    "one rank": (1, {}),
    "pipedream": (2, {"pp": 2, "schedule": "pipedream"}),
    "servers": (3, {"servers": 1}),
}
SHORT = {"batch_size": 14, "epochs": 1, "lr_schedule": "constant"}


def trainer_of(comm: Comm, *callbacks: object, **options: Any) -> Trainer:
    return runs.trainer_of(comm, {**SHORT, **options}, callbacks=callbacks)


def trained(comm: Comm, **options: Any) -> Trainer:
    """One that has trained for an epoch."""
    trainer = trainer_of(comm, **options)
    trainer.fit(NullReport())
    return trainer


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [*LAYOUTS, "asp"])
def test_after_a_run_a_model_is_tested_used_and_saved(name: str, tmp_path: Path) -> None:
    ranks, options = {**LAYOUTS, "asp": (3, {"sync": "asp"})}[name]
    x, path = rows(33)[0] + 0.5, str(tmp_path / "m.safetensors")

    def rank(comm: Comm) -> list[np.ndarray]:
        with trainer_of(comm, **options) as trainer:
            result = trainer.fit(NullReport())
            assert trainer.evaluate().mean_loss == result["test_loss"]
            found = [trainer.predict(x[:n]) for n in (33, 0, 1, 2)]
            batches: Iterator[Any] = (x[i : i + 10] for i in range(0, 33, 10))
            found.append(np.concatenate([*trainer.predict(batches)]))
            assert not any(m.training for m in trainer.model.modules())
            trainer.save(path)
        return found

    of_ranks = threads.run(ranks, rank)
    state, about = nnmpi.load(path, with_metadata=True)
    model = small().to("float64").eval()
    model.load_state_dict(state)
    wanted = model(Standardiser.from_metadata(about).apply(x.astype("float32"), "float64")).numpy()
    for whole, *short, joined in of_ranks:
        np.testing.assert_allclose(whole, wanted, rtol=1e-9)
        np.testing.assert_array_equal(whole, of_ranks[0][0])
        np.testing.assert_allclose(joined, wanted, rtol=1e-9)
        for n, scores in zip((0, 1, 2), short, strict=True):
            assert (scores.shape, scores.dtype) == ((n, 3), np.float64)
            np.testing.assert_allclose(scores, wanted[:n], rtol=1e-9)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("ranks", "options"), LAYOUTS.values(), ids=LAYOUTS)
def test_more_epochs_are_those_of_one_longer_run(ranks: int, options: dict[str, Any]) -> None:
    def rank(comm: Comm, *epochs: int) -> Event:
        first, *more = epochs
        trainer = trainer_of(comm, epochs=first, **options)
        result = trainer.fit(NullReport())
        for n in more:
            trainer.predict(np.zeros((1, 6)))
            result = trainer.fit(NullReport(), epochs=n)
        return result

    wanted, found = threads.run(ranks, rank, 3), threads.run(ranks, rank, 1, 2)
    for event in found:
        for name in ("parameters_sha256", "steps", "epochs", "test_loss"):
            assert event[name] == wanted[0][name]


def test_ranks_of_a_run_can_use_the_model_alone() -> None:
    """With ZeRO too, where each has parts between steps."""

    def rank(comm: Comm, **options: Any) -> list[np.ndarray]:
        trainer = trained(comm, **options)
        found = [trainer.model(np.ones((2, 6))).numpy()] if trainer.is_first else []
        if comm.size > 1:
            with refused("call trainer.close() before another optimizer updates them"):
                trainer.optimizer.step()
        with trainer.gathered_parameters():
            trainer.model[-1].bias.data[...] += 1
        trainer.fit(NullReport(), epochs=1)
        return [*found, *([trainer.model(np.ones((2, 6))).numpy()] * trainer.is_first)]

    (wanted,) = threads.run(1, rank)
    for zero in (1, 3):
        found, *_ = threads.run(3, lambda comm, zero=zero: rank(comm, zero=zero))
        np.testing.assert_allclose(found, wanted, rtol=1e-7)


def test_the_schedule_begins_anew_over_more_epochs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = Config(batch_size=14, epochs=2, steps=7, lr_schedule="cosine", log=str(log))
    trainer = Trainer(config, small, rows())
    trainer.fit(Report(str(log), stdout=io.StringIO()))
    trainer.fit(epochs=2)
    events = but_steps(map(json.loads, log.read_text().splitlines()))
    assert [e["event"] for e in events] == ["start", "epoch", "epoch", "done"] * 2
    epochs = [e for e in events if e["event"] == "epoch"]
    assert [e["epoch"] for e in epochs] == [1, 2, 3, 4]
    assert [e["steps"] for e in epochs] == [4, 7, 11, 15]
    rates = [0.003 * (1 + np.cos(np.pi * t / n)) / 2 for t, n in ((3, 7), (6, 7), (3, 8), (7, 8))]
    assert [e["lr"] for e in epochs] == pytest.approx(rates)
    assert (events[4]["steps"], trainer.step) == (15, 15)


def test_a_run_that_is_over_needs_epochs() -> None:
    trainer = Trainer(Config(steps=2, batch_size=14), small, rows())
    fit(trainer)
    with refused("the run is over, after 2 of its 2 steps: fit(epochs=N) makes N more epochs"):
        fit(trainer)
    with refused("epochs"):
        trainer.fit(epochs=0)
    trainer.stop()
    assert trainer.fit(Report(stdout=io.StringIO()), epochs=3)["steps"] == 3
    assert trainer.fit(Report(stdout=io.StringIO()), epochs=1)["event"] == "done"
    trainer.close()
    with refused("is closed, by close() or because its run failed; make another"):
        trainer.fit(epochs=1)


def test_what_cannot_be_after_the_end_says_why() -> None:
    def rank(comm: Comm) -> None:
        trainer = Trainer(Config(steps=1, pp=2), small, rows(), comm)
        trainer.fit(NullReport())
        with refused("is in a stage of rank"):
            trainer.model(np.zeros((1, 6), "float32"))
        trainer.close()
        for name, call in (
            ("evaluate", trainer.evaluate),
            ("save", lambda: trainer.save("m")),
            ("predict", lambda: trainer.predict(rows()[0])),
        ):
            with refused(
                f"this Trainer is closed, by close() or because its run failed: call {name}"
            ):
                call()

    threads.run(2, rank)


# ---- samples


class Two(nn.Module):
    def __init__(self) -> None:
        self.embed, self.out = nn.Embedding(9, 4), nn.Linear(3, 4)

    def forward(self, words: Any, about: Any) -> nnmpi.Tensor:
        both = self.embed(words) + self.out(about).unsqueeze(1)
        return both.transpose(0, 2, 1)


@pytest.mark.parametrize("names", [("words", "about"), ()], ids=["dict", "tuple"])
def test_scores_of_several_inputs_and_of_positions(names: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    parts = rng.integers(0, 9, (30, 5)), rng.standard_normal((30, 3)).astype("float32")
    x: Any = dict(zip(names, parts, strict=True)) if names else parts

    def rank(comm: Comm) -> np.ndarray:
        config = Config(steps=2, batch_size=8, pp=1)
        trainer = Trainer(config, Two, (x, parts[0] % 4), comm)
        trainer.fit(NullReport())
        found: np.ndarray = trainer.predict(x)
        given = trainer.standardiser.apply(x)
        alone = trainer.model(**given) if names else trainer.model(*given)
        np.testing.assert_allclose(found, alone.numpy(), rtol=1e-5, atol=1e-6)
        return found

    assert [found.shape for found in threads.run(3, rank)] == [(30, 4, 5)] * 3


MISFITS: list[tuple[Any, str]] = [
    (np.ones((4, 5)), "of shape (5,)"),
    ((np.ones((4, 6)),), "a tuple of 1"),
    (np.ones((4, 6), int), "int64"),
    (np.full((4, 6), np.nan), "4 of 4 rows hold NaN"),
    ([[1.0], [1.0, 2.0]], "rectangular"),
]


@pytest.mark.parametrize(("x", "words"), MISFITS, ids=range(len(MISFITS)))
def test_samples_that_do_not_fit_are_refused_on_all_ranks(x: Any, words: str) -> None:
    def rank(comm: Comm) -> None:
        trainer = Trainer(Config(steps=1), small, rows(), comm)
        with pytest.raises((ValueError, RuntimeError)) as error:
            trainer.predict(x)
        assert words in str(error.value)
        assert trainer.predict(rows()[0]).shape == (70, 3)

    threads.run(2, rank)


def test_ranks_with_other_samples_are_refused() -> None:
    def rank(comm: Comm) -> None:
        trainer = Trainer(Config(steps=1), small, rows(), comm)
        with pytest.raises(
            (ValueError, RuntimeError), match="rank 1 differs from rank 0 in the sam"
        ):
            trainer.predict(rows(5 + comm.rank)[0])

    threads.run(2, rank)


# ---- calls of some ranks only


@pytest.mark.parametrize("options", [{}, {"allreduce": "shared"}, {"servers": 1}], ids=str)
def test_the_first_rank_saves_alone_where_it_has_all(
    options: dict[str, Any], tmp_path: Path
) -> None:
    path = str(tmp_path / "m.safetensors")

    def rank(comm: Comm) -> None:
        trainer = trained(comm, **options)
        if trainer.is_first:
            trainer.save(path)

    threads.run(3, rank)
    one = trained(comm_self()).model.state_dict()
    for name, array in nnmpi.load(path).items():
        np.testing.assert_allclose(array, one[name], rtol=1e-7)


def test_ranks_that_call_different_things_are_refused() -> None:
    def rank(comm: Comm) -> None:
        trainer = Trainer(Config(steps=1), small, rows(), comm)
        with refused("rank 0 has called evaluate, rank 1 has called fit(epochs=1)"):
            trainer.fit(epochs=1) if comm.rank else trainer.evaluate()

    threads.run(2, rank)


# ---- what ranks share


@pytest.mark.parametrize("options", [{}, {"pp": 2, "micro_batches": 2}], ids=str)
def test_a_run_that_could_not_save_goes_on_on_all_ranks(options: Any, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    save = folder / "m.safetensors"

    def stops(trainer: Trainer, event: Event) -> None:
        if event["step"] == 1 and trainer.is_first:
            trainer.stop()
            folder.rmdir()

    def rank(comm: Comm) -> int:
        given = {"epochs": 2, "batch_size": 28, "save": str(save), **options}
        trainer = trainer_of(comm, SimpleNamespace(on_step=stops), **given)
        with pytest.raises(AgreedError, match=r"\Acannot save"):
            trainer.fit(NullReport())
        comm.barrier()
        folder.mkdir(exist_ok=True)
        made = trainer.step
        trainer.fit(NullReport(), epochs=2)
        return trainer.step - made

    assert threads.run(2, rank) == [4, 4]
    assert save.is_file()


def test_a_trainer_that_is_dropped_is_freed_at_once() -> None:
    """Nothing that it has made knows it, nor its session: memory does not wait for a collection."""

    steps = list[int]()
    counts = SimpleNamespace(on_step=lambda trainer, event: steps.append(event["step"]))
    gc.disable()
    try:
        trainer = trainer_of(comm_self(), counts)
        trainer.fit(NullReport())
        trainer.rearrange(micro_batches=2)
        trainer.fit(NullReport(), epochs=1)
        there = weakref.ref(trainer), weakref.ref(trainer.session)
        del trainer
        assert [one() for one in there] == [None, None]
    finally:
        gc.enable()
    assert steps
