"""Command lines of random options with good, bad and hostile values."""

from contextlib import chdir
from dataclasses import Field
from pathlib import Path
from typing import Any

import numpy as np
from fuzzing import Outcome, command

from nnmpi.options.config import options
from nnmpi.options.option import kind_of

NUMBERS = ("0", "1", "2", "3", "-1", "0.5", "1e-300", "1e308", "nan", "inf", "1e999", "")
LARGE = ("64", "1000000", str(2**31), str(2**63 - 1), str(2**63), str(2**64), "9" * 5000)
WORDS = (
    *("none", "a/b", "\x1b[31m", "a\0b", "x\ny", "\ud800", "m" * 300, "m" * 5000, "", " ", "-"),
    *("..", "/", "/dev/null", "1:2", "0:3", "0.1:5", "3,7", ":", "a:b", "..:x", "a" * 99 + ":f"),
    *("iris-mlp", "mlp:4-3", "mlp:4-8-3", "mlp:4", "mlp:-", "iris", "digits", "mnist", "cifar10"),
    *("synthetic:4:3:20", "synthetic:1x4x4:3:9", "synthetic:0:1:1", f"synthetic:{2**62}:2:2"),
    *("x.npz", "cosine", "constant", "step:2", "step:0", "warmup:3+cosine", "warmup:1+" * 999),
)
STRAY = ("--nothing", "digits", "--lr", "-x", "--", "--epoch=3", "@file", "--config=none.toml")
FREE = {"steps": ("1", "2", "0", "-1", "x", "")}  # or a run would be long
UNUSED = ("download",)  # needs a network


def case(rng: np.random.Generator, folder: Path) -> Outcome:
    own = [o for o in options() if o.name not in UNUSED]
    chosen = [own[i] for i in rng.permutation(len(own))[: rng.integers(1, 5)]]
    arguments = ["--model=iris-mlp", "--data=iris", "--steps=1", "--quiet"]
    arguments += [_argument(rng, option) for option in chosen]
    arguments += [_one(rng, STRAY)] * int(rng.random() < 0.05)
    names = ["learning rate", *(name for a in arguments for name in _names(a))]
    with chdir(folder):
        status, outcome = command(arguments, *names)
    if status in (0, 1, 2):
        return outcome
    return Outcome(outcome.fault, f"status {status}; {outcome.what}")


def _argument(rng: np.random.Generator, option: "Field[Any]") -> str:
    flag = f"--{option.name.replace('_', '-')}"
    if kind_of(option) is bool:
        return _one(rng, (flag, f"--no-{flag[2:]}", f"{flag}=1"))
    choices = tuple(map(str, option.metadata["choices"]))
    values = (*choices, *choices, *NUMBERS, *LARGE, *WORDS) if choices else NUMBERS + LARGE
    if kind_of(option) is str and not choices:
        values = WORDS + WORDS + NUMBERS
    return f"{flag}={_one(rng, FREE.get(option.name, values))}"


def _names(argument: str) -> list[str]:
    """How a message may name an argument."""
    flag, _, value = argument.removeprefix("--").removeprefix("no-").partition("=")
    name = flag.replace("-", "_")
    return [flag, name, name.removesuffix("s"), *([value[:20]] if len(value) > 2 else [])]


def _one(rng: np.random.Generator, values: tuple[str, ...]) -> str:
    return values[rng.integers(len(values))]
