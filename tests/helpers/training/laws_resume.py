"""Training that goes on in another layout, from the model and the state of the optimizer."""

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
from helpers.once import once
from helpers.sample import one_in
from helpers.training.pipelined import BOUND, distance

from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm, comm_self, launched
from nnmpi.nn.state import assign, which_held
from nnmpi.parallel.model.whole import whole_optimizer
from nnmpi.parallel.step.executor import StepState

State = dict[str, np.ndarray]
HALF = 3  # steps: with batches of 30 out of 72, in the second epoch
OPTIMIZERS: tuple[dict[str, Any], ...] = (
    {"optimizer": "sgd", "momentum": 0.9, "lr": 0.02},
    {"optimizer": "adam", "weight_decay": 0.01, "clip_norm": 0.5},
    {"optimizer": "adamw", "weight_decay": 0.1},
    {"optimizer": "rmsprop", "weight_decay": 0.01},
    {"optimizer": "nadam", "weight_decay": 0.01},
    {"optimizer": "adadelta", "lr": 0.5},
)


class Saved(NamedTuple):
    """All that training goes on from."""

    model: State
    optimizer: State
    at: StepState


def build() -> nn.Sequential:
    """Weights whose memory is not in the order of their axes, and sizes that leave padding."""
    first = nn.Conv2d(1, 5, 3, bias=False), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 6, 3)
    then = nn.ReLU(), nn.Flatten(), nn.Linear(96, 7), nn.Dropout(0.2), nn.Tanh(), nn.Linear(7, 10)
    return nn.Sequential(*first, *then)


def trainer_of(comm: Comm, model: Callable[[], nn.Module] = build, **options: Any) -> Trainer:
    common = {"data": "synthetic:1x8x8:10:90", "batch_size": 30, "epochs": 9, "dtype": "float64"}
    common["lr_schedule"] = "constant"  # which does not depend on the number of steps of the run
    return Trainer(Config(**{**common, **options}), model, comm=comm)


def go(trainer: Trainer, at: StepState, steps: int) -> Saved:
    """So many steps; what is saved is whole, on all ranks."""
    until = at.step + steps
    trainer.model.train()
    while at.step < until:
        with closing(trainer.strategy.steps(trainer.train, at)) as results:
            for result in results:
                at = result.state
                if at.step == until:
                    break
    model = {name: a.copy() for name, a in trainer.strategy.full_state.on_all_ranks()}
    found = trainer.optimizer_state_dict()
    trainer.close()
    state = everywhere(trainer)
    assert list(found) == (list(state) if trainer.is_first else [])
    assert all(found[name].tobytes() == state[name].tobytes() for name in found)
    return Saved(model, state, at)


def everywhere(trainer: Trainer) -> State:
    """The state of the optimizer on all ranks, also after the end of a run."""
    arrays = whole_optimizer(trainer.optimizer, trainer.model, trainer.comm)
    return dict(arrays.on_all_ranks())


def go_on(comm: Comm, saved: Saved, steps: int, **options: Any) -> Saved:
    """The same steps from there in a layout."""
    trainer = trainer_of(comm, **options)
    tensors = [*trainer.model.tensors()]
    held = which_held(tensors, trainer.session.part.held)
    with trainer.gathered_parameters():
        for (place, tensor), is_held in zip(tensors, held, strict=True):
            if is_held:  # a stage of a pipeline has no memory for the others
                assign(tensor, saved.model[place.path][place.slices])
    trainer.load_optimizer_state_dict(saved.optimizer)
    comm.barrier()
    return go(trainer, saved.at, steps)


def start(comm: Comm, steps: int, **options: Any) -> Saved:
    return go(trainer_of(comm, **options), StepState(), steps)


@once
def undisturbed(steps: int, options: tuple[tuple[str, Any], ...]) -> Saved:
    """On one rank, once a process."""
    return start(comm_self(), steps, **dict(options))


def one_rank(steps: int, options: Mapping[str, Any]) -> Saved:
    return undisturbed(steps, tuple(sorted(options.items())))


def layouts(p: int) -> list[dict[str, Any]]:
    """dp through shared memory and by messages, ZeRO, pp, tp, and several of them."""
    found: list[dict[str, Any]] = [
        {"allreduce": "shared"},
        {"allreduce": "shared", "bucket_mb": 0.001},
        {"allreduce": "ring"},
        {"allreduce": "ring", "zero": 1, "bucket_mb": 0.001},
        {"allreduce": "ring", "zero": 3},
    ]
    if 1 < p <= 4:  # a cut that is measured may be another one the next time, and so may bits
        found += [{"pp": p, "cut": ",".join(("3", "6", "9")[: p - 1])}, {"tp": p}]
    if p == 4:
        found += [
            {"dp": 2, "pp": 2, "cut": "6"},
            {"dp": 2, "tp": 2, "allreduce": "ring", "zero": 2},
        ]
    if p == 8:
        three = {"dp": 2, "pp": 2, "tp": 2, "cut": "6"}
        found += [three, {**three, "allreduce": "ring", "zero": 3}]
    return found


def near(found: Saved, wanted: Saved) -> None:
    assert found.at == wanted.at
    assert distance(found.model, wanted.model) < BOUND
    assert list(found.optimizer) == list(wanted.optimizer)
    assert distance(found.optimizer, wanted.optimizer) < BOUND


# ---- the laws


def training_goes_on_in_another_layout(comm: Comm) -> None:
    """Each layout goes on from another one's state, and one rank from each; over MPI every other
    layout, with a state of those between."""
    ways = layouts(comm.size)
    tried = [*enumerate(ways)][:: 1 if launched() == 1 else 2]
    for i, way in one_in(3, tried, "another layout"):
        optimizer = {**OPTIMIZERS[i % len(OPTIMIZERS)], "micro_batches": 2}
        saved = start(comm, HALF, **optimizer, **way)
        near(saved, one_rank(HALF, optimizer))
        wanted = one_rank(2 * HALF, optimizer)
        near(go_on(comm, saved, HALF, **optimizer, **ways[i - 1]), wanted)
        near(go_on(comm_self(), saved, HALF, **optimizer), wanted)
        near(go_on(comm, one_rank(HALF, optimizer), HALF, **optimizer, **way), wanted)


def the_same_layout_goes_on_with_the_same_bits(comm: Comm) -> None:
    found = zip(layouts(comm.size), 2 * OPTIMIZERS, strict=False)
    for way, optimizer in one_in(3, found, "same layout"):
        whole = start(comm, 2 * HALF, **{**optimizer, **way})
        saved = start(comm, HALF, **{**optimizer, **way})
        again = go_on(comm, saved, HALF, **{**optimizer, **way})
        for a, b in ((again.model, whole.model), (again.optimizer, whole.optimizer)):
            assert all(a[name].tobytes() == b[name].tobytes() for name in b)
