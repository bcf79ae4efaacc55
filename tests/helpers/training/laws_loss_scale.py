"""The loss scale of float16 on all ranks alike: functions of a Comm."""

from functools import partial
from typing import Any

from helpers.training.pipelined import Options, digits

from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.io.output import Event, NullReport
from nnmpi.metrics import Sums
from nnmpi.parallel.agreement import gather_objects

LAYOUTS: list[Options] = [
    {"dp": 2, "allreduce": "ring"},
    {"dp": 2, "allreduce": "shared"},
    *({"dp": 2, "zero": zero} for zero in (1, 2, 3)),
    {"pp": 2, "cut": "2", "micro_batches": 2},
]


class Watch:
    """The loss scale after each step, and how many steps were skipped by then."""

    def __init__(self) -> None:
        self.scales: list[float] = []
        self.skipped: list[int] = []

    def on_step(self, trainer: Trainer, event: Event) -> None:
        self.scales.append(event["loss_scale"])
        self.skipped.append(trainer.skipped)


def trainer_of(comm: Comm, watch: Watch, factor: float, **options: Any) -> Trainer:
    """Of a loss that is the cross-entropy times a factor."""
    plain: Options = {"dtype": "float16", "batch_size": 20, "epochs": 2, "optimizer": "sgd"}
    plain |= {"model": "mlp:64-16-10", "lr": 0.1 / factor, "lr_schedule": "constant"}
    return Trainer(
        Config(**plain | options),
        data=digits(),
        comm=comm,
        loss=None if factor == 1 else partial(_times, factor),
        callbacks=[watch],
    )


def _times(factor: float, scores: Any, labels: Any) -> Any:
    return nn.CrossEntropyLoss()(scores, labels) * factor


def too_large_gradients_halve_it_on_all_ranks(comm: Comm) -> None:
    """Steps are skipped until gradients fit; nothing has moved before."""
    for layout in LAYOUTS if comm.size == 2 else [{}]:
        watch = Watch()
        trainer = trainer_of(comm, watch, 2.0**10, **layout)
        first = First(trainer.strategy.full_state.sha256())
        trainer.callbacks.append(first)
        trainer.fit(NullReport())
        assert first.is_unchanged, layout
        halvings = watch.skipped[-1]
        assert 5 <= halvings <= 9, (layout, watch.scales)
        assert watch.scales[:halvings] == [2.0 ** (15 - k) for k in range(halvings)]
        assert watch.scales[halvings:] == [2.0 ** (16 - halvings)] * (10 - halvings)
        assert watch.skipped == [min(k + 1, halvings) for k in range(10)]
        assert len({str(one) for one in gather_objects(comm, watch.scales)}) == 1
        trainer.close()


class First:
    """Whether the first step, which is skipped, has changed no parameter."""

    def __init__(self, before: str) -> None:
        self.before, self.is_unchanged = before, False

    def on_step(self, trainer: Trainer, event: Event) -> None:
        if event["step"] == 1:
            self.is_unchanged = trainer.strategy.full_state.sha256() == self.before


def good_steps_double_it(comm: Comm) -> None:
    """After GROWTH_INTERVAL of them, which is 4 here."""
    watch = Watch()
    trainer = trainer_of(comm, watch, 2.0**-8)
    trainer.fit(NullReport())
    assert watch.scales == [2.0 ** (16 + (k + 1) // 4) for k in range(10)]
    trainer.close()


def it_goes_on_from_a_snapshot(comm: Comm) -> None:
    """With its counter: the doubling comes at the same step."""
    taken: list[Snapshot] = []

    class Take(Watch):
        def on_step(self, trainer: Trainer, event: Event) -> None:
            super().on_step(trainer, event)
            if event["step"] == 6:
                taken.append(trainer.snapshot())

    watch, rest = Take(), Watch()
    with trainer_of(comm, watch, 2.0**-8) as trainer:
        trainer.fit(NullReport())
    (scale,) = (x.elements().tolist() for x in taken[0].arrays if x.name == "loss scale")
    assert scale == [2.0**17, 2]
    with trainer_of(comm, rest, 2.0**-8) as trainer:
        trainer.restore(taken[0])
        trainer.fit(NullReport())
    assert rest.scales == watch.scales[6:]


def small_gradients_survive(comm: Comm) -> float:
    """By how much the loss falls that has gradients of 1e-8, less than float16 has."""
    watch, factor = Watch(), 2.0**-20
    with trainer_of(comm, watch, factor, epochs=6) as trainer:
        before: Sums = trainer.evaluate()
        trainer.fit(NullReport())
        after: Sums = trainer.evaluate()
    return (before.mean_loss - after.mean_loss) / factor
