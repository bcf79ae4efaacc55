"""Who reads and writes parameters with ZeRO: a step, all ranks together, no rank alone.

That every stage trains as one rank is in the table of conformance.
"""

import copy
from collections.abc import Callable
from itertools import count, product
from typing import Any

import numpy as np
import pytest
from helpers.once import by_first
from helpers.training.laws_training import RING
from helpers.training.pipelined import BOUND, MLP, Options, digits, distance, equals, reference, run

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm, comm_self
from nnmpi.io.output import Event, NullReport
from nnmpi.nn.state import assign
from nnmpi.utils.checkpoint import checkpoint

STAGES = (1, 2, 3)
LAYOUTS: dict[int, Options] = {4: {"dp": 2, "pp": 2}, 8: {"dp": 4, "pp": 2}}


class ReadsAlone:
    """On the first rank; all that needs parameters is refused."""

    def on_step(self, trainer: Trainer, event: Event) -> None:
        if not trainer.is_first:
            return
        p, stage = trainer.part.parameters[0], trainer.part.stages[0]
        x = nnmpi.tensor(trainer.train.gather(np.arange(2)).x)
        reads: list[Callable[[], object]] = [
            *(lambda: p.array, p.numpy, p.detach, lambda: np.asarray(p), lambda: repr(p)),
            *(stage.state_dict, lambda: stage(x), lambda: copy.deepcopy(stage)),
            *(lambda: assign(p, np.ones(p.shape)), lambda: setattr(p, "data", np.ones(p.shape))),
        ]
        dp = trainer.strategy.layout.axis["dp"].size
        words = f"^[^\n]*: between steps its values are sharded over {dp} ranks along dp; [^\n]*"
        for read in reads:
            with nnmpi.no_grad(), pytest.raises(ValueError, match=words) as refused:
                read()
            assert "with trainer.gathered_parameters()" in str(refused.value)


def _ran(comm: Comm, callback: object, **options: Any) -> Event:
    config = Config(**{**MLP, "dtype": "float64", "epochs": 1, "batch_size": 24, **options})
    return Trainer(config, None, digits(), comm, callbacks=[callback]).fit(NullReport())


class Silent:
    """Reads nothing."""

    def on_step(self, trainer: Trainer, event: Event) -> None:
        pass


def a_rank_that_reads_alone_is_refused(comm: Comm) -> None:
    """At once, and without a message: the run goes on with the same bits."""
    for zero in STAGES if comm.size > 1 else ():
        options = {**RING, **LAYOUTS.get(comm.size, {}), "zero": zero}
        one, other = (_ran(comm, told, **options) for told in (ReadsAlone(), Silent()))
        assert one["parameters_sha256"] == other["parameters_sha256"]


class Gathers:
    """Each rank reads and runs its stages, the first one more often than others."""

    def __init__(self) -> None:
        self.sums: list[float] = []

    def on_step(self, trainer: Trainer, event: Event) -> None:
        with trainer.gathered_parameters():
            self.sums.append(sum(float(abs(p.array).sum()) for p in trainer.part.parameters))
            if trainer.is_first:
                x = trainer.train.gather(np.arange(2)).x
                scores = trainer.model(nnmpi.tensor(x))
                self.sums.append(float(abs(scores.numpy()).sum()))
            repr(trainer.part.parameters[-trainer.comm.rank % 3])

    def on_epoch(self, trainer: Trainer, event: Event) -> None:
        with trainer.gathered_parameters():
            assert trainer.evaluate().mean_loss == event["test_loss"]


def all_ranks_gather_what_each_then_reads(comm: Comm) -> None:
    """The values of one rank after the same step; the run goes on with the same bits."""
    wanted = Gathers()
    _ran(comm_self(), wanted)
    for zero in STAGES:
        told = Gathers()
        one, other = (_ran(comm, c, **RING, zero=zero) for c in (told, Silent()))
        assert one["parameters_sha256"] == other["parameters_sha256"]
        if comm.rank == 0:
            np.testing.assert_allclose(told.sums, wanted.sums, rtol=BOUND)


def no_step_begins_while_parameters_are_gathered(comm: Comm) -> None:
    if comm.size == 1:
        return
    for zero in STAGES:
        trainer = Trainer(Config(**MLP, **RING, zero=zero), None, digits(), comm)
        with trainer.gathered_parameters():
            steps = trainer.strategy.steps(trainer.train, trainer.state)
            with pytest.raises(ValueError, match=r"within trainer.gathered_parameters\(\): leave"):
                next(steps)
        trainer.close()


class Read(nn.Module):
    """Reads some of its layers in an order of its own."""

    def __init__(self, *order: int) -> None:
        self.order, self.layers = order, nn.ModuleList([nn.Linear(64, 64) for _ in range(6)])

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        x = x.reshape(len(x), 64)
        for layer in self.layers:
            x = nnmpi.tanh(layer(x))
        assert all(self.layers[k].weight.array.size for k in self.order)
        return x


def reading_another_layer_is_refused(comm: Comm) -> None:
    """Its values are not there, and all ranks find that alike; those of two layers are."""
    if comm.size == 1:
        return
    config = Config(zero=3, allreduce="ring", bucket_mb=1e-6)
    for order in ((5, 4), (5, 1)):
        trainer = Trainer(config, lambda order=order: Read(*order), digits(), comm)
        step = trainer.strategy.steps(trainer.train, trainer.state)
        if order == (5, 4):
            next(step)
        else:
            with pytest.raises(
                ValueError, match=r"layers.1.weight, or a parameter that was read before"
            ):
                next(step)
        trainer.close()


class ReadAgain(Read):
    """Reads a layer when its last one runs again, in the backward pass."""

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        runs = count()

        def last(x: nnmpi.Tensor) -> nnmpi.Tensor:
            assert next(runs) == 0 or all(self.layers[k].weight.array.size for k in self.order)
            return self.layers[-1](x)

        x = x.reshape(len(x), 64)
        for layer in self.layers[:-1]:
            x = nnmpi.tanh(layer(x))
        return checkpoint(last, x)


def reading_another_layer_in_a_backward_pass_is_refused(comm: Comm) -> None:
    if comm.size == 1:
        return
    config = Config(zero=3, allreduce="ring", bucket_mb=1e-6)
    trainer = Trainer(config, lambda: ReadAgain(1), digits(), comm)
    with pytest.raises(ValueError, match=r"layers.1.weight is read in the backward pass of other"):
        next(trainer.strategy.steps(trainer.train, trainer.state))
    trainer.close()


def values_that_are_written_between_steps_are_trained(comm: Comm) -> None:
    """Of a trainer, by load_state_dict and into `data`; afterwards the model is whole."""
    wanted = by_first(comm, lambda: _written(comm_self()))
    for zero in STAGES:
        got = _written(comm, **RING, zero=zero)
        assert distance(got, wanted) < BOUND


def _written(comm: Comm, **options: object) -> dict[str, np.ndarray]:
    config = Config(**MLP, dtype="float64", epochs=1, batch_size=24, **options)  # type: ignore[arg-type]
    trainer = Trainer(config, None, digits(), comm)
    with trainer.gathered_parameters():
        state = {name: array + 0.01 for name, array in trainer.model.state_dict().items()}
        trainer.model.load_state_dict(state)
        first, *rest = trainer.model.parameters()
        first.array = first.array * 2
        rest[-1].array += 0.5
    trainer.fit(NullReport())
    first.array *= 2  # in memory of its own by now
    return trainer.model.state_dict()


class Mixed(nn.Module):
    """One operation takes parameters of two layers."""

    def __init__(self) -> None:
        self.first, self.last = nn.Linear(64, 24), nn.Linear(24, 10)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        both = nnmpi.concatenate([self.first.bias, self.last.bias])
        y: nnmpi.Tensor = self.last(self.first(x.reshape(len(x), 64)))
        return y + both.sum()


def an_operation_may_use_two_layers(comm: Comm) -> None:
    """The values of both are there at a time."""
    wanted = reference(comm, build=Mixed)
    for zero, bucket_mb in product(STAGES, (None, 1e-6)):
        equals(comm, run(comm, Mixed, zero=zero, allreduce="ring", bucket_mb=bucket_mb), wanted)


class Constant(nn.Module):
    """A parameter of one layer is a constant in another one, and the last layer in all of them."""

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(64, 24), nn.Linear(24, 24)
        self.third, self.last = nn.Linear(24, 24), nn.Linear(24, 10)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        y = nnmpi.tanh(self.first(x.reshape(len(x), 64)) * self.last.weight.array[0])
        y = nnmpi.tanh(self.second(y) @ self.third.weight.numpy())
        scores: nnmpi.Tensor = self.last(nnmpi.tanh(self.third(y)))
        return scores


def values_stay_as_they_were_read(comm: Comm) -> None:
    """Those of one parameter when another one is read, in a forward pass and between steps."""
    wanted = reference(comm, build=Constant)
    for zero in STAGES:
        equals(comm, run(comm, Constant, zero=zero, allreduce="ring", bucket_mb=1e-6), wanted)
    wanted_sums = by_first(comm, lambda: _read_and_copied(comm_self()))
    for zero in STAGES:
        found = _read_and_copied(comm, zero=zero, allreduce="ring", bucket_mb=1e-6)
        np.testing.assert_allclose(found, wanted_sums, rtol=BOUND)


def _read_and_copied(comm: Comm, **options: object) -> list[float]:
    """Sums of all parameters, read together after each step; then some are copied to others."""
    model = {"model": "mlp:64-24-24-24-24-10", "dtype": "float64", "batch_size": 24, "steps": 3}
    trainer, found = Trainer(Config(**model, **options), None, digits(), comm), []  # type: ignore[arg-type]
    for _ in trainer.strategy.steps(trainer.train, trainer.state):
        _, _, second, _, third, _, fourth, *_ = trainer.model.parameters()
        with trainer.gathered_parameters(), nnmpi.no_grad():
            values = [p.array for p in trainer.model.parameters()]
            found += [float(array.sum()) for array in values]
            second.array = fourth.array
            third += second
            fourth[...] = third
    trainer.close()
    return found
