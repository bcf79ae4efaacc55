"""Laws of cuts: inside residual connections, inside what runs as one op, across integers."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from helpers.once import once
from helpers.sample import one_in
from helpers.training.pipelined import (
    RECOMPUTED,
    SCHEDULES,
    Options,
    equals,
    is_same,
    reference,
    run,
    stages_a_rank,
    trains_as_one_rank,
)

import nnmpi
from nnmpi import data, nn
from nnmpi.comm import Comm, launched
from nnmpi.data import Dataset


class Residual(nn.Module):
    """x + b(relu(a(x))), with a scale of its own."""

    def __init__(self, width: int) -> None:
        self.a, self.b = nn.Linear(width, width + 3), nn.Linear(width + 3, width)
        self.scale = nn.Parameter(np.ones(width, np.float32))

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        return x * self.scale + self.b(nnmpi.relu(self.a(x)))


def residual_mlp() -> nn.Module:
    """Layers 2 and 3, 4 and 5, 6 and 7 are blocks."""
    blocks = [Residual(20), nn.Sequential(Residual(20)), Residual(20)]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), *blocks, nn.Linear(20, 10))


class ConvBlock(nn.Module):
    """Two convolutions beside a third one, which is called first."""

    def __init__(self, channels: int, out: int) -> None:
        self.first = nn.Conv2d(channels, out, 3, padding=1, bias=False)
        self.norm, self.relu = nn.BatchNorm2d(out), nn.ReLU()
        self.second = nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, out, 1)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        short = self.shortcut(x)
        return self.relu(self.second(self.relu(self.norm(self.first(x)))) + short)


class ConvNet(nn.Module):
    """No Sequential: two blocks (layers 0 to 5 and 6 to 11), a pool, dropout, scores."""

    def __init__(self) -> None:
        self.one, self.two = ConvBlock(1, 5), ConvBlock(5, 4)
        self.pool, self.drop, self.last = nn.MaxPool2d(2), nn.Dropout(0.2), nn.Linear(64, 10)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        x = self.pool(self.two(self.one(x)))
        scores: nnmpi.Tensor = self.last(self.drop(x.reshape(len(x), -1)))
        return scores


class Skips(nn.Module):
    """The first activation is used by the last layers, so it passes through stages between."""

    def __init__(self) -> None:
        self.enter = nn.Linear(64, 12)
        self.layers = nn.ModuleList([nn.Linear(12, 12) for _ in range(4)])
        self.last = nn.Linear(24, 10)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        first = y = nnmpi.tanh(self.enter(x.reshape(len(x), 64)))
        for layer in self.layers:
            y = nnmpi.tanh(layer(y))
        scores: nnmpi.Tensor = self.last(nnmpi.concatenate([y, first], axis=1))
        return scores


class Model(NamedTuple):
    """A model, and a cut into 2, 3, 4 and 6 stages."""

    build: Callable[[], nn.Module]
    cuts: dict[int, str]


MODELS = {
    "residual mlp": Model(residual_mlp, {2: "3", 3: "3,6", 4: "3,5,7", 6: "2,3,5,6,7"}),
    "residual cnn": Model(ConvNet, {2: "3", 3: "4,6", 4: "1,4,10", 6: "1,2,4,6,7"}),
    "skips": Model(Skips, {2: "2", 3: "1,3", 4: "1,2,4", 6: "1,2,3,4,5"}),
}


def cuts(comm: Comm, model: Model, schedule: str) -> list[Options]:
    """The cuts on these ranks; the best one does not depend on the schedule."""
    stages = comm.size * stages_a_rank(schedule)
    found = [model.cuts.get(stages), None] if schedule == "1f1b" else [model.cuts.get(stages)]
    return [{"pp": comm.size, "schedule": schedule, "cut": cut} for cut in found]


def cuts_cross_residual_connections(comm: Comm) -> None:
    for model in MODELS.values() if comm.size in (2, 3) else ():
        # over MPI some of what holds on threads: messages are the same
        for m in (1, 5) if launched() == 1 else (5,):
            wanted = reference(comm, build=model.build, micro_batches=m)
            for schedule in SCHEDULES if m > 1 and launched() == 1 else ("1f1b", "interleaved"):
                for layout in cuts(comm, model, schedule):
                    got = run(comm, model.build, micro_batches=m, **layout)
                    equals(comm, got, wanted)
                    if schedule in RECOMPUTED and m > 1 and layout["cut"]:
                        is_same(
                            run(comm, model.build, micro_batches=m, recompute=True, **layout), got
                        )


def pipelines_beside_each_other_cross_them_too(comm: Comm) -> None:
    """Ranks along dp have no samples in some micro-batches."""
    found = product(MODELS.values(), ("1f1b", "zb-h1")) if comm.size == 4 else ()
    for model, schedule in one_in(3, found, "beside each other"):
        layout = {"dp": 2, "pp": 2, "cut": model.cuts[2], "schedule": schedule}
        trains_as_one_rank(layout, {"build": model.build, "micro_batches": 5}, comm)


def verify_finds_no_difference_across_cuts(comm: Comm) -> None:
    for model in MODELS.values() if comm.size in (2, 3) else ():
        layout = {"pp": comm.size, "cut": model.cuts[comm.size]}
        got = run(comm, model.build, micro_batches=3, verify=True, steps=6, **layout)
        assert sum(e["event"] == "verify" for e in got.events) == 6


# ---- what runs as one op


def conv_net() -> nn.Module:
    blocks = [nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    more = [nn.Conv2d(6, 7, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(112, 20), nn.ReLU()]
    return nn.Sequential(*blocks, *more, nn.Linear(20, 10))


def cuts_part_what_runs_as_one_op(comm: Comm) -> None:
    cuts = {2: ("1", "2", "4", "7"), 3: ("1,4", "2,7", "4,7"), 4: ("1,4,7",)}
    for cut, schedule in product(cuts.get(comm.size, ()), ("1f1b", "zb-h1")):
        layout = {"pp": comm.size, "cut": cut, "schedule": schedule}
        trains_as_one_rank(layout, {"build": conv_net, "micro_batches": 4}, comm)


# ---- integers


WORDS, LENGTH = 11, 6
ROWS, REST = slice(100), slice(100, None)


@once
def sentences(inputs: int) -> Dataset:
    """Indices of words; with 2 inputs, also their positions, in any order."""
    draws = np.random.default_rng(0)
    words = draws.integers(0, WORDS, (131, LENGTH))
    places = draws.permuted(np.tile(np.arange(LENGTH), (131, 1)), axis=1)
    labels = (words * (1 + places)).sum(axis=1) % 3
    x = (words, places)
    train, test = (tuple(array[part] for array in x[:inputs]) for part in (ROWS, REST))
    if inputs == 1:
        (train,), (test,) = train, test
    return data.from_arrays(train, labels[ROWS], test, labels[REST], seed=0)


class Reader(nn.Module):
    """Its last layers take the indices again, and with 2 inputs the positions as well."""

    def __init__(self, inputs: int) -> None:
        self.words, self.again = nn.Embedding(WORDS, 8), nn.Embedding(WORDS, 8)
        self.places = nn.Embedding(LENGTH, 8) if inputs == 2 else nn.Identity()
        self.middle, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, words: nnmpi.Tensor, places: nnmpi.Tensor | None = None) -> nnmpi.Tensor:
        y = nnmpi.tanh(self.middle(self.words(words)))
        if places is not None:
            y = y + self.places(places)
        scores: nnmpi.Tensor = self.last((y * self.again(words)).mean(axis=1))
        return scores


READERS: list[Options] = [
    {"build": partial(Reader, n), "given": partial(sentences, n), "micro_batches": 3}
    for n in (1, 2)
]


def later_stages_take_integers(comm: Comm) -> None:
    cuts = {2: "1", 3: "1,2", 4: "1,2,3"}
    schedules = ("gpipe", "1f1b", "zb-h1", "interleaved", "zb-v")
    for case, schedule in product(READERS, schedules) if comm.size in (2, 3) else ():
        if cut := cuts.get(comm.size * stages_a_rank(schedule)):  # else it has too few layers
            for recompute in (False, True) if schedule == "1f1b" else (True,):
                layout = {"pp": comm.size, "cut": cut, "schedule": schedule}
                trains_as_one_rank({**layout, "recompute": recompute}, case, comm)
