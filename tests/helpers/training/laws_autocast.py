"""Around a whole Trainer, autocast computes what it computes on one rank, within the rounding of
bfloat16: layers that are divided among ranks follow it, too."""

from collections.abc import Callable
from functools import partial
from typing import Any

from helpers.once import by_first
from helpers.training.laws_halves import BOUNDS, near
from helpers.training.laws_language import MODELS, UNEVEN, tokens
from helpers.training.pipelined import CNN, MLP, Options, Ran, digits, run, same_on_all

import nnmpi
from nnmpi import nn
from nnmpi.comm import Comm, comm_self
from nnmpi.data import Dataset


def products_of_layers_are_narrow(comm: Comm) -> None:
    """Linear layers and convolutions by channels, and ranks that have some samples."""
    for case in (MLP, CNN):
        for layout in ({"tp": comm.size}, {"dp": comm.size, "zero": 3}):
            _trains_as_one_rank(comm, layout, case)


def products_of_image_rows_are_narrow(comm: Comm) -> None:
    """The input of the second convolution has 16 bits already."""
    _trains_as_one_rank(comm, {"tp": comm.size, "layout": "0=spatial,2=spatial"}, {}, _images)


def products_of_transformers_are_narrow(comm: Comm) -> None:
    for name in ("decoder", "gpt", "routed"):
        by_channels = {"tp": comm.size}
        layouts = [by_channels, {**by_channels, "sequence_parallel": True}]
        layouts += [{"cp": comm.size}] if name != "routed" else []
        for layout in layouts:
            build = partial(MODELS[name], UNEVEN)
            _trains_as_one_rank(comm, layout, {"batch_size": 9}, build, tokens(UNEVEN))


def _images() -> nn.Module:
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))


def _trains_as_one_rank(
    comm: Comm,
    layout: Options,
    case: Options,
    build: Callable[[], nn.Module] | None = None,
    given: Dataset | Callable[[], Dataset] = digits,
) -> None:
    def trained(comm: Comm, within: bool, **options: Any) -> Ran:
        options |= {"dtype": "float32", "lr": 0.01}
        with nnmpi.autocast("cpu", dtype="bfloat16", enabled=within):
            return run(comm, build, given, **case | options)

    got, wide = (trained(comm, within, **layout) for within in (True, False))
    near(got, by_first(comm, lambda: trained(comm_self(), True)), BOUNDS["bfloat16"])
    assert got.losses != wide.losses, "autocast changes nothing"
    assert same_on_all(comm, got.done["parameters_sha256"])
