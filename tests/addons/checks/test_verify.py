"""--verify: what counts as a difference, what is said of it, and how such a run ends."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.commands import IRIS, Command
from helpers.kernels.halves import UNIT
from helpers.runs import rows, small
from helpers.training.laws_masters import LAYOUTS
from helpers.training.pipelined import Noted, digits

from nnmpi import Config, Trainer, nn
from nnmpi.addons.checks.verify import (
    BOUNDS,
    Comparison,
    Difference,
    VerifyError,
    difference,
    largest,
)
from nnmpi.arrays.dtypes import HALVES
from nnmpi.comm import Comm, OtherRankError
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.optim import Adam
from nnmpi.optim.loss_scale import LossScale
from nnmpi.parallel.step.ports import LossSink
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.strategy import TrainSpec
from nnmpi.run.end import DivergedError
from nnmpi.run.session import Session

STRICT = dict.fromkeys(("loss", "gradients", "parameters"), 1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_differs_from_all_but_its_like(value: float) -> None:
    with np.errstate(all="ignore"):
        a, b = np.array([1.0, value]), np.array([1.0, 2.0])
        assert difference(a, a.copy()) == Difference()
        for found in (
            difference(a, b),
            difference(b, a),
            difference(a, -a),
            largest([difference(a, b, 1.0)]),
        ):
            same_nan = found == Difference(2, 2, found.ulp)  # 1 and -1 beside two NaN
            assert found == Difference(math.inf, math.inf, math.inf) or (
                np.isnan(value) and same_nan
            )
        assert difference(np.array([3.0, value]), np.array([2.0, value]))[:2] == (1, 0.5)


@pytest.mark.parametrize("subject", ["loss", "gradients", "parameters"])
def test_no_subject_passes_that_is_not_within_the_bound(subject: str) -> None:
    good = dict.fromkeys(("loss", "gradients", "parameters"), Difference())
    assert Comparison(good, True, False, False).reason(STRICT) is None
    for worse in (math.nan, math.inf, 2e-3):
        bad = {**good, subject: Difference(relative=worse)}
        said = Comparison(bad, True, False, False).reason(STRICT)
        assert said is not None
        assert said.startswith(f"{subject} of the layout differ")


def after_two(change: Callable[[], object]) -> Noted:
    """A report that changes something after the second step."""
    return Noted(lambda step: change() if step == 2 else None)


def nudge(row: np.ndarray) -> None:
    """Moves the first number to the next one."""
    row[0] = np.nextafter(row[0], np.inf, dtype=row.dtype)


@pytest.mark.parametrize("options", [{"allreduce": "ring"}, {"reproducible": True}], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_replicas_have_to_have_equal_bits_however_little_they_differ(
    options: Any, dtype: str
) -> None:
    config = Config(verify=True, batch_size=14, dtype=dtype, **options)

    def rank(comm: Comm) -> int:
        trainer = Trainer(config, small, rows(), comm)
        row = next(trainer.model.parameters()).data.reshape(-1)
        report = after_two(partial(nudge, row)) if comm.rank == 1 else NullReport()
        with pytest.raises(VerifyError, match=r"\Astep 3: parameters are not the same on all"):
            trainer.fit(report)
        return trainer.step

    assert threads.run(3, rank) == [2] * 3


class Largest(NullReport):
    """Keeps the largest of a number of the lines of --verify."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self.found = name, 0.0

    def event(self, event: Any) -> None:
        if event["event"] == "verify":
            self.found = max(self.found, event[self._name])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("allreduce", ["ring", "halving"])
def test_sums_that_travel_in_16_bits_stay_within_the_bounds(dtype: str, allreduce: str) -> None:
    """Which are those of sums in float32: p - 1 roundings of a gradient are less."""
    layout = {"dtype": dtype, "reduce_dtype": dtype, "allreduce": allreduce}
    config = Config(verify=True, batch_size=14, epochs=2, bucket_mb=1e-5, **layout)

    def rank(comm: Comm) -> float:
        report = Largest("gradients_relative")
        Trainer(config, small, rows(), comm).fit(report)
        return report.found

    found = max(threads.run(4, rank))
    assert 0 < found < BOUNDS[dtype]["gradients"] / 4


def test_what_diverges_alike_is_told_as_divergence() -> None:
    def rank(comm: Comm) -> str:
        values = iter((1e38, np.nan))  # an infinite loss of the layout, and one that is none

        def wild() -> nn.Module:
            model, value = small(), next(values)
            for p in model.parameters():
                p.data[...] = value
            return model

        trainer = Trainer(Config(verify=True), wild, rows(), comm)
        with pytest.raises(DivergedError, match="loss became") as ended:
            trainer.fit(NullReport())
        return str(ended.value)

    assert len(set(threads.run(2, rank))) == 1


def test_a_reference_that_one_rank_cannot_make_ends_all() -> None:
    """Before anything is shared."""

    def rank(comm: Comm) -> type[Exception]:
        made = []

        def build() -> nn.Module:
            made.append(1)
            if comm.rank == 1 and len(made) == 2:
                raise ValueError("no second one")
            return small()

        with pytest.raises((ValueError, OtherRankError), match="no second one") as ended:
            Trainer(Config(verify=True), build, rows(), comm)
        return ended.type

    assert threads.run(3, rank) == [OtherRankError, ValueError, OtherRankError]


def test_one_rank_has_nothing_to_compare(command: Command) -> None:
    ended = command(*IRIS, "--verify")
    assert (ended.status, ended.out) == (2, "")
    assert ended.err == (
        "nnmpi.train: verify with 1 rank: there is nothing to compare it with; "
        "start it with mpirun -n 2, or leave verify out\n"
    )


def test_what_is_loaded_after_a_trainer_is_made_is_verified_too() -> None:
    def run(comm: Comm) -> object:
        trainer = Trainer(Config(verify=True, steps=2), small, rows(), comm)
        state = {name: 2 * t for name, t in trainer.model.state_dict().items()}
        comm.barrier()  # all have read what they share
        trainer.model.load_state_dict(state)
        comm.barrier()
        return trainer.fit(NullReport())["event"]

    assert threads.run(2, run) == ["done"] * 2


@pytest.mark.parametrize(
    "options",
    [{}, {"allreduce": "ring"}, {"reproducible": True}, {"dtype": "float64"}],
    ids=str,
)
def test_a_wrong_update_is_found(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Adam.step

    def wrong(adam: Adam, *, lr_factor: float = 1.0) -> None:
        is_of_layout = isinstance(adam.parameters[0].store, LocalStore)
        step(adam, lr_factor=lr_factor * (1.001 if is_of_layout else 1))

    monkeypatch.setattr(Adam, "step", wrong)

    def rank(comm: Comm) -> None:
        config = Config(model="iris-mlp", data="iris", steps=2, verify=True, **options)
        Trainer(config, comm=comm).fit(NullReport())

    with pytest.raises(VerifyError, match="step 1: parameters of the layout differ"):
        threads.run(2, rank)


@pytest.mark.parametrize("wrong", [0.0, 1e-3])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_update_of_a_rank_that_is_wrong_by_less_than_the_rounding_is_found(
    layout: str, dtype: str, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Adam.step

    def spoilt(adam: Adam, *, lr_factor: float = 1.0) -> None:
        store = adam.parameters[0].store
        is_wrong = isinstance(store, LocalStore) and (store.dp.size, store.dp.rank) == (2, 1)
        step(adam, lr_factor=lr_factor * (1 + wrong * is_wrong))

    monkeypatch.setattr(Adam, "step", spoilt)
    config = Config(verify=True, batch_size=14, epochs=2, dtype=dtype, **LAYOUTS[layout])

    def rank(comm: Comm) -> float:
        report = Largest("parameters_relative")
        refused = pytest.raises(VerifyError, match="step 1: parameters")
        with refused if wrong else nullcontext():
            Trainer(config, small, rows(), comm).fit(report)
        return report.found

    for found in threads.run(2, rank):
        assert (found > 0) == (wrong > 0)
        assert found < UNIT[dtype]


def test_wrong_running_statistics_are_found() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 3))

    def rank(comm: Comm) -> None:
        trainer = Trainer(Config(verify=True, batch_size=14, dtype="float64"), build, rows(), comm)
        with pytest.raises(VerifyError, match="step 3: buffers of the layout differ"):
            trainer.fit(after_two(lambda: trainer.model[1].running_mean.add_(1.0)))

    threads.run(2, rank)


def two_stages() -> nn.Sequential:
    """Of the second stage's layers the first shares its weight with the last one before it."""
    tied = nn.Linear(6, 6), nn.Linear(6, 6)
    tied[1].weight = tied[0].weight
    return nn.Sequential(nn.BatchNorm1d(6), *tied, nn.Tanh(), nn.Linear(6, 3))


def shift(model: nn.Module) -> None:
    model[4].bias.data += 1e-3


def track(model: nn.Module) -> None:
    model[0].running_mean += 1


def untie(model: nn.Module) -> None:
    row = model[2].weight.data[0]
    row[...] = np.nextafter(row, row.dtype.type(9))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("where", "spoil", "words"),
    [
        (1, shift, "parameters of the layout differ"),
        (0, track, "buffers of the layout differ"),
        (1, untie, "parameters are not the same on all ranks"),
    ],
)
def test_what_one_stage_does_wrong_is_found(
    where: int, spoil: Callable[[nn.Module], None], words: str, dtype: str
) -> None:
    config = Config(verify=True, pp=2, cut="2", batch_size=14, dtype=dtype)

    def rank(comm: Comm) -> None:
        trainer = Trainer(config, two_stages, rows(), comm)
        change = partial(spoil, trainer.model) if comm.rank == where else lambda: None
        with pytest.raises(VerifyError, match=f"step 3: {words}"):
            trainer.fit(after_two(change))

    threads.run(2, rank)


def test_a_restored_run_gives_the_second_model_its_loss_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a step that only one of the two skips would be told as a difference."""
    resumed, scales = Session._resumed, list[tuple[LossScale, LossScale]]()

    def noted(session: Session, spec: TrainSpec, *rest: Any) -> Any:
        settings = resumed(session, spec, *rest)
        assert spec.single_rank is not None
        scalers = spec.task.scaler, spec.single_rank.task.scaler
        scales.append(tuple(s.current for s in scalers if s))  # type: ignore[arg-type]
        return settings

    monkeypatch.setattr(Session, "_resumed", noted)
    config = Config(verify=True, dtype="float16", steps=2, batch_size=14)

    def rank(comm: Comm) -> None:
        with Trainer(config, small, rows(), comm) as trainer:
            scaler = trainer.session.task.scaler
            assert scaler is not None
            scaler.current = LossScale(8.0, 3, True)
            trainer.restore(trainer.snapshot())

    threads.run(2, rank)
    assert scales == [(LossScale(8.0, 3, True),) * 2] * 2


def test_a_mean_of_micro_batches_is_not_shared_with_the_single_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each micro-batch is divided by its own number of labels, some of which are ignored: the wrong
    line is in the code of both."""
    right = LossSink.seeds

    def seeds(self: LossSink, micro: int, *given: Any) -> Any:
        counted = max(1, int((self._load.micro[micro].y != -100).sum()))
        of_own = self._load._replace(divisor=float(counted * len(self._load.micro)))
        self._load, kept = of_own, self._load
        try:
            return right(self, micro, *given)
        finally:
            self._load = kept

    y = digits().train.y.copy()
    y[::3] = -100
    dataset = digits()._replace(train=digits().train._replace(y=y))
    config = Config(model="mlp:64-16-10", pp=2, micro_batches=4, verify=True, steps=2, cut="2")
    threads.run(2, lambda comm: Trainer(config, data=dataset, comm=comm).fit())
    monkeypatch.setattr(LossSink, "seeds", seeds)
    with pytest.raises(VerifyError, match=r"step 1: .* differ from those of one rank"):
        threads.run(2, lambda comm: Trainer(config, data=dataset, comm=comm).fit())
