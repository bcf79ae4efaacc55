"""Runs over an MPI that begins and completes operations late (helpers/chaos.py), and the same runs
on threads."""

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from helpers.once import by_first, folder
from helpers.training.pipelined import same_on_all
from helpers.training.recovered import Left, trained
from simulation.layouts import LAYOUTS

from nnmpi import Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event

SIZED = ("dp", "pp", "servers")
"""Options with which a layout has one number of ranks."""

OF_LOSSES = ("backup", "elastic")
"""Options that are refused in a job that ends with its first lost rank."""


class Closes:
    """A callback that keeps the Trainer, to free its communicators."""

    trainer: Trainer

    def on_end(self, trainer: Trainer, event: Event) -> None:
        self.trainer = trainer


def layouts_of(ranks: int) -> list[str]:
    """The layouts that so many ranks may have, by name."""
    own = layouts_of_only(ranks)
    return [
        name
        for name, layout in LAYOUTS.items()
        if name in own or not {*SIZED} & layout.given.keys()
    ]


def layouts_of_only(ranks: int) -> list[str]:
    """Those that no other number of ranks may have."""
    return [
        name
        for name, layout in LAYOUTS.items()
        if layout.ranks == ranks and {*SIZED} & layout.given.keys()
    ]


def has_the_bits_of_threads(comm: Comm, name: str) -> None:
    """The model has the bits of a run on threads; where the order of messages or a second
    measurement decides, all ranks have the same bits."""
    layout = LAYOUTS[name]
    options = {k: value for k, value in layout.options.items() if k not in OF_LOSSES}

    def saved_in(directory: str) -> dict[str, Any]:
        callbacks = {"callbacks": [make() for make in options.get("callbacks", ())]}
        return options | callbacks | ({"checkpoint_dir": directory} if layout.saves else {})

    with folder(comm) as directory:
        processes, closes = saved_in(f"{directory}/of-processes"), Closes()
        processes["callbacks"].append(closes)
        got = trained(comm, processes)
        closes.trainer.close()
        cut = got.events[0].get("cut")  # it is measured
        options.update({"cut": cut} if cut else {})

        def on_threads() -> str:
            options_of = partial(saved_in, f"{directory}/of-threads")
            return digest(threads.run(comm.size, lambda rank: trained(rank, options_of()))[0])

        measures_again = layout.arranges_anew and "pp" in options
        if layout.is_ordered and not measures_again:
            assert digest(got) == by_first(comm, on_threads)
        assert same_on_all(comm, digest(got))


def digest(left: Left) -> str:
    """A hash of the model; a spare rank has none."""
    state: Mapping[str, Any] = left.state or {}
    text = b"".join(name.encode() + np.asarray(a).tobytes() for name, a in sorted(state.items()))
    return hashlib.sha256(text).hexdigest()


def operations_are_late(comm: Comm) -> None:
    """Each kind of delay has happened on some rank."""
    from nnmpi.comm.transport import start_mpi  # it starts MPI

    counts = start_mpi.MPI.counts
    kinds = ("held", "overtaken", "denied")
    found = np.array([counts[kind] for kind in kinds])
    comm.all_reduce(found)
    assert (found > 0).all(), dict(zip(kinds, found.tolist(), strict=True))
