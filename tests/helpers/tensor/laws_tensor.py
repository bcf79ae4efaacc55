"""What training with sharded layers has to keep, on any number of ranks: functions of a Comm."""

from collections.abc import Callable

import pytest
from helpers.training.pipelined import MLP, Options, digits, trains_as_one_rank

from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm

UNEVEN: Options = {**MLP, "model": "mlp:64-51-31-23-11"}
"""Widths that neither 2 nor 3 nor 4 divides, and one class more than there are digits."""

LAYOUTS: dict[int, list[Options]] = {
    1: [{"tp": 1}],
    2: [{"tp": 2}],
    3: [{"tp": 3}],
    4: [{"tp": 4}, {"dp": 2, "tp": 2}, {"pp": 2, "tp": 2}],
}
"""By the number of ranks."""


def layouts(comm: Comm) -> list[Options]:
    return LAYOUTS[comm.size]


WAYS = ((0, "shared"), (1, "ring"), (0, "ring"), (1, "shared"), (2, "halving"), (3, "p2p"))
"""Kinds of stores, and algorithms that sum their gradients."""


def sums_over_dp_give_copies_equal_bits(comm: Comm) -> None:
    """A bias behind a sum over tp is added up over dp by each of its ranks alone."""
    case = {**UNEVEN, "model": "mlp:64-7-301-11", "optimizer": "adam", "clip_norm": None}
    for layout in layouts(comm):
        alone = layout.get("dp", 1) == 1
        for zero, allreduce in WAYS[:2] if alone else WAYS:
            how = {"allreduce": allreduce, "zero": zero, "bucket_mb": 0.005}
            trains_as_one_rank({**layout, **how}, case, comm)


def cuts_between_a_column_and_its_row_train_as_one_rank(comm: Comm) -> None:
    """Flatten, Column, ReLU | Row: the boundary is sharded, with parts of uneven widths."""
    for schedule in ("gpipe", "1f1b", "zb-h1") if comm.size == 4 else ():
        layout = {"pp": 2, "tp": 2, "cut": "3", "schedule": schedule}
        trains_as_one_rank(layout, {**UNEVEN, "micro_batches": 4}, comm)


MISTAKES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "too narrow": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 1), nn.ReLU(), nn.Linear(1, 10)),
        r"layer 1 \(Linear\): 1 channel cannot be divided among \d ranks",
    ),
    "a size that does not fit": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Linear(30, 10)),
        "and data .* do not fit",
    ),
    "too few scores": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9)),
        r"scores of shape \(9,\) for a sample, and there are 10 classes",
    ),
    "other images": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)),
        "and data .* do not fit",
    ),
}


def mistakes_give_one_line_on_all_ranks(comm: Comm) -> None:
    for layout in layouts(comm):
        if layout["tp"] > 1 and "pp" not in layout:  # which refuses some of them itself
            for build, message in MISTAKES.values():
                config = Config(**layout, batch_size=24)
                with pytest.raises(Exception, match=message) as raised:
                    Trainer(config, build, digits(), comm)
                assert "\n" not in str(raised.value)
