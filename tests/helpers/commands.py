"""Shared by the tests of the command: its result, and the arguments of a small run."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

IRIS = ("--model", "iris-mlp", "--data", "iris")
MODELS = """
from nnmpi import nn
from nnmpi.nn.models import iris_mlp as make

instance = make()
number = 3

def none():
    return [1,
            2]

def wide(width):
    return nn.Linear(4, width)

def normed():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

class Picky(nn.Linear):
    def forward(self, x):
        if self.training and len(x.array) == 1:
            raise ValueError("one sample is too few")
        return super().forward(x)

def picky():
    return Picky(4, 3)
"""
MODULES = {
    "models": MODELS,
    "broken": "def make(:",
    "fails": "def make(): ...\n{}['gone']",
    "exits": "raise SystemExit(3)",
}
"""The files of own_package."""


class Completed(NamedTuple):
    """The exit status and the output of a command."""

    status: object
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., Completed]
