"""Random products of features train as one rank does, and go on in another layout; on threads.

Lists of steps are proved before they run, and --verify compares each step with one rank. The losses
of the steps behind the break are those of one rank that trains from the beginning without one.
"""

import traceback
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fuzzing import GOOD, Fault, Outcome, judged
from helpers.step_lists import prove_lists
from helpers.training.pipelined import SCHEDULES, Heard

from nnmpi import Config, Trainer
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads

Options = dict[str, Any]

BREAK, STEPS = 2, 4
DRAWS = 40  # of layouts, of which many are refused
MOST_RANKS = 8
BOUND = 1e-7  # of losses in float64: Adam divides gradients by their size, rounding included

MODELS: tuple[Options, ...] = (
    {"model": "mlp:64-24-20-18-16-14-12-10", "data": "synthetic:1x8x8:10:40"},
    {"model": "digits-cnn", "data": "synthetic:1x8x8:10:40"},
    {"model": "gpt:2x4x8", "context": 8},
)
"""The embedding of the last one is its output layer too."""
TEXT = "to be, or not to be, that is the question. " * 12


def case(rng: np.random.Generator, folder: Path) -> Outcome:
    text = folder / "text.txt"
    text.write_text(TEXT)
    trained = {"data": f"text:{text}", "checkpoint_dir": str(folder / "checkpoints")}
    trained |= _trained(rng)
    heard, scales = list[float](), list[float]()
    for steps in ({"steps": BREAK}, {"steps": STEPS, "resume": True}):
        for draw in range(DRAWS + 1):  # the last one is one rank, which nothing refuses
            ranks, layout = _layout(rng, trained) if draw < DRAWS else (1, {})
            options = {**trained, **steps, **layout}
            what = f"{ranks} ranks, {options}"
            try:
                steps_of = threads.run(ranks, trained_steps, options)[0]
                heard, scales = heard + steps_of.losses, scales + steps_of.scales
                break
            except ValueError as error:  # refused, in words
                if fault := judged(str(error), "").fault:
                    return Outcome(fault, f"{what}: {error}")
            except Exception:
                return Outcome(Fault.WRONG, f"{what}: {traceback.format_exc()[-1500:]}")
    one_rank = {**trained, "steps": STEPS, "checkpoint_dir": None}
    wanted, scales_of_one = trained_steps(comm_self(), one_rank)
    if scales != scales_of_one:  # a sum that is close to the largest number may overflow in one
        return GOOD
    bound = BOUND if trained["dtype"] == "float64" else 0.1
    if len(heard) != STEPS or not np.allclose(heard, wanted, rtol=bound, atol=0):
        return Outcome(Fault.WRONG, f"{what}: losses {heard}, those of one rank are {wanted}")
    return GOOD


class Steps(NamedTuple):
    """The losses and the loss scales of steps; none without a scale."""

    losses: list[float]
    scales: list[float]


def trained_steps(comm: Comm, options: Options) -> Steps:
    """The steps of a run."""
    heard, trainer = Heard(), Trainer(Config(**options), comm=comm)
    if comm.rank == 0:
        prove_lists(trainer.arrangement)
    trainer.fit(heard)
    of_steps = [event for event in heard.events if event["event"] == "step"]
    return Steps(heard.losses, [e["loss_scale"] for e in of_steps if "loss_scale" in e])


def _trained(rng: np.random.Generator) -> Options:
    """What is trained, in every layout."""
    model = MODELS[rng.integers(len(MODELS))]
    return {
        **model,
        "dtype": str(rng.choice(["float64", "float16", "bfloat16"], p=[0.8, 0.1, 0.1])),
        "optimizer": str(rng.choice(["sgd", "adam", "adamw", "rmsprop"])),
        "clip_norm": [None, 0.1][rng.integers(2)],
        "weight_decay": float(rng.choice([0.0, 0.01])),
        "dropout": 0.2 * bool(rng.integers(2)) * ("context" in model),
        "lr": 1e-3,
        "lr_schedule": "constant",  # which does not depend on the number of steps
        "batch_size": int(rng.integers(6, 17)),
        "micro_batches": int(rng.integers(1, 6)),
    }


def _layout(rng: np.random.Generator, trained: Options) -> tuple[int, Options]:
    """Ranks, and how they share the model and the work."""
    sums: Options = {
        "zero": int(rng.integers(4)),
        "recompute": rng.random() < 0.3,
        "allreduce": str(rng.choice(["ring", "ring", "halving", "shared", "mpi"])),
        "bucket_mb": [None, 0.002][rng.integers(2)],
        "overlap": rng.random() < 0.7,
    }
    if rng.random() < 0.15:  # ranks with a limit of memory have the whole model
        ranks = int(rng.integers(1, 4))
        memory = f"{int(10 ** rng.uniform(4.5, 6))}B"
        whole = {"zero": sums["zero"] % 2, "recompute": False, "memory": memory}
        return ranks, {**sums, "dp": ranks, **whole}
    axes, ranks = ["dp", "pp", "tp", *["cp"] * ("context" in trained)], 0
    while not 1 < ranks <= MOST_RANKS:
        sizes = {axis: int(rng.choice([1, 2, 3, 4], p=[0.4, 0.4, 0.1, 0.1])) for axis in axes}
        ranks = int(np.prod([*sizes.values()]))
    return ranks, {
        **sums,
        **sizes,
        "verify": True,
        "schedule": str(rng.choice(SCHEDULES)),
        "sequence_parallel": sizes["tp"] > 1 and rng.random() < 0.3,
    }
