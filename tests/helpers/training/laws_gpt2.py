"""A folder of GPT-2 or Llama that ranks load (in shards, or one file), train on and write, in any
layout."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from helpers.once import by_first, folder, once
from helpers.shards import cut
from helpers.training.laws_language import tokens
from helpers.training.pipelined import Options, Ran, distance, equals, run
from safetensors.numpy import load_file

from nnmpi import nn
from nnmpi.addons.language.models.gpt2 import save_gpt2
from nnmpi.addons.language.models.llama import LlamaSizes
from nnmpi.addons.language.models.llama_folder import save_llama
from nnmpi.comm import Comm, comm_self

TUNING: Options = {
    "optimizer": "adamw",
    "weight_decay": 0.3,
    "weight_decay_of": "matrices",
    "lr": 0.01,
    "lr_schedule": "warmup:3+cosine",
    "clip_norm": 0.5,
    "dropout": 0.1,
    "batch_size": 9,
}
LAYOUTS: dict[int, list[Options]] = {
    1: [{"micro_batches": 3}],
    2: [{"dp": 2, "zero": 1}, {"tp": 2}, {"pp": 2, "micro_batches": 3}],
    3: [{"dp": 3, "zero": 3}, {"tp": 3}],
    4: [{"dp": 2, "tp": 2, "zero": 2}, {"pp": 2, "tp": 2, "micro_batches": 3}],
}
"""By the number of ranks; 5 heads divide by none of these."""


class Tuned(NamedTuple):
    """A run, and the files that it wrote."""

    ran: Ran
    config: dict[str, object]
    tensors: dict[str, np.ndarray]


def model() -> nn.GPT:
    """More tokens and positions than the data has, and biases that are not 0: those of keys
    have a true gradient of 0, and Adam moves them by its rounding."""
    made = nn.GPT(2, 5, 20, vocabulary=23, positions=8)
    rng = np.random.default_rng(1)
    for name, p in made.named_parameters():
        p.array[...] = rng.standard_normal(p.shape) * 0.4
        p.array += "ln" in name and name.endswith("weight")
    made.ln_f.weight.array *= rng.choice([-3, 3], 20)  # so the last token is not the next one
    return made


def llama() -> nn.Llama:
    """As `model`, with five heads of keys, each for two heads."""
    made = nn.Llama(LlamaSizes(2, 10, 20, 23, 8, 5, 9, rope_theta=300.0))
    rng = np.random.default_rng(1)
    for name, p in made.named_parameters():
        p.array[...] = rng.standard_normal(p.shape) * 0.4
        p.array += "norm" in name
    return made


def save(made: nn.Module, to: str) -> None:
    if isinstance(made, nn.Llama):
        save_llama(made, to)
    else:
        assert isinstance(made, nn.GPT)
        save_gpt2(made, to)


def tuned(comm: Comm, within: str, **layout: object) -> Tuned:
    """Ten steps from the folder `start`, saved beside it."""
    out = Path(within, "-".join(map(str, layout.values())) or "alone")
    case = {**TUNING, "load": f"{within}/start", "save": f"{out}/"}
    if json.loads(Path(within, "start", "config.json").read_text())["model_type"] == "llama":
        case["dropout"] = 0.0
    ran = run(comm, None, tokens(), **case | layout)
    comm.barrier()  # until the first rank has written
    config = json.loads((out / "config.json").read_text())
    return Tuned(ran, config, load_file(out / "model.safetensors"))


@once
def alone(make: Callable[[], nn.Module]) -> Tuned:
    with folder(comm_self()) as name:
        save(make(), f"{name}/start")
        return tuned(comm_self(), name)


def is_tuned_as_on_one_rank(comm: Comm) -> None:
    _is_tuned(comm, model)


def a_llama_is_tuned_as_on_one_rank(comm: Comm) -> None:
    _is_tuned(comm, llama)


def _is_tuned(comm: Comm, make: Callable[[], nn.Module]) -> None:
    wanted = by_first(comm, lambda: alone(make))
    with folder(comm) as name:
        if comm.rank == 0:
            save(make(), f"{name}/start")
            cut(Path(name, "start"), 3)
        comm.barrier()
        for layout in LAYOUTS[comm.size]:
            found = tuned(comm, name, **layout)
            equals(comm, found.ran, wanted.ran)
            assert found.config == wanted.config
            assert distance(found.tensors, wanted.tensors) < 1e-10
