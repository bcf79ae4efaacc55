"""Layouts of ranks that are processes, with a device each: mpirun -n 2 python ranks.py"""

from functools import partial
from typing import Any

from helpers.sample import one_in
from helpers.training.laws_language import MODELS, POSITIONS, many_tokens
from helpers.training.pipelined import CNN, MLP, by_first, equals, run

from nnmpi.comm import Comm, comm_self, world

DECODER = {"build": partial(MODELS["decoder"], POSITIONS), "given": many_tokens}
CASES: dict[int, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    2: [
        *(({"zero": zero, "bucket_mb": 0.01}, MLP) for zero in (0, 1, 2, 3)),
        ({"tp": 2}, MLP),
        ({"pp": 2}, {**MLP, "micro_batches": 2}),
        ({"tp": 2, "sequence_parallel": True}, DECODER),
    ],
    4: [
        ({"dp": 2, "tp": 2, "zero": 1}, MLP),
        ({"dp": 2, "pp": 2, "zero": 2}, {**MLP, "micro_batches": 2}),
        ({"zero": 3, "bucket_mb": 0.01}, CNN),
        ({"dp": 2, "tp": 2, "sequence_parallel": True}, DECODER),
    ],
}
"""Layouts by the number of ranks, and what is trained in them, on one rank on the CPU too."""


def sample(ranks: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Every second case, or all of them with --all."""
    return one_in(2, CASES[ranks], "over NCCL")


def trains_as_one_rank(comm: Comm, layout: dict[str, Any], case: dict[str, Any]) -> None:
    """Parameters, gradients and losses are those of one rank on the CPU."""
    case = {**case, "given": case["given"]()} if "given" in case else case
    alone = by_first(comm, lambda: run(comm_self(), **case))
    equals(comm, run(comm, device="cuda", allreduce="nccl", **case, **layout), alone)


if __name__ == "__main__":
    cases = sample(world().size)
    for layout, case in cases:
        trains_as_one_rank(world(), layout, case)
    if world().rank == 0:
        print(len(cases), "layouts")
