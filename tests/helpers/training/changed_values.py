"""Ways in which a program changes a value that a pass reads, which changed_values.txt lists."""

from pathlib import Path
from typing import Any, NamedTuple

COMMON = """
import builtins, contextvars, enum, functools, itertools, math, operator, os, random, sys, threading
import time, types, typing, weakref, dataclasses
from functools import partial
from time import monotonic
import numpy as np
import nnmpi
from nnmpi import Tensor, nn
from nnmpi.nn import functional as F
settings = types.ModuleType("settings")
settings.SCALE = 1.0
exec("def helper(): return SCALE", vars(settings))
class Cfg:
    of_class = 1.0
    def __init__(self): self.scale = 1.0
    def method(self): return self.scale
    @property
    def doubled(self): return 2 * self.scale
    @classmethod
    def by_class(cls): return cls.of_class
    @staticmethod
    def static(): return 1.0
    def __getitem__(self, key): return self.scale
    def __call__(self): return self.scale
class Base(Cfg):
    pass
class Derived(Base):
    pass
CFG = Cfg()
def f(s=1.0, *, k=1.0): return s * k
"""

MODEL = """
class Parent(nn.Module):
    of_parent = 1.0
class Model(Parent):
    of_class = 1.0
    def __init__(self):
        self.layer, self.act, self.scale = nn.Linear(4, 3), nn.Tanh(), 1.0
        self.table, self.names, self.cfg, self.by = [1.0], {{"k": 1.0}}, Cfg(), f
        self.register_buffer("seen", np.ones(1, "float32"))
    @property
    def doubled(self): return 2 * self.scale
    def method(self): return self.scale
    def factor(self, x): return {expression}
    def forward(self, x): return self.layer(x) * self.factor(x)
"""

FUNCTIONS = """
def loss(x, y): return F.mse_loss(x, y) * ({expression})
def step(x, y, *, model):
    return loss(model(x), y) + ({expression})
"""


class Way(NamedTuple):
    """What defines a value, the expression that reads it, what changes it, and what undoes that."""

    define: str
    expression: str
    change: str = "pass"
    undo: str = "pass"

    def names(self, of_model: bool = True) -> dict[str, Any]:
        """The names of a program that has a class Model, whose forward reads the value; or a
        function `loss` and a function `step` that read it."""
        names: dict[str, Any] = {"__name__": "program"}
        in_model = MODEL.format(expression=self.expression if of_model else "1.0")
        in_functions = "" if of_model else FUNCTIONS.format(expression=self.expression)
        exec("\n".join((COMMON, self.define, in_model, in_functions)), names)
        return names

    def changed(self, names: dict[str, Any], model: Any) -> None:
        """Changes the value of a program with these names."""
        names["model"] = model
        exec(self.change, names)


def _ways(section: str) -> dict[str, Way]:
    """The rows of a section of changed_values.txt."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    lines = text.partition(f"[{section}]")[2].partition("\n[")[0].splitlines()[1:]
    rows = (line for line in lines if line and line[0] != "#")
    return {row: Way(*(part.strip() for part in row.split("|"))) for row in rows}


OF_PROGRAM = _ways("of program")
OF_MODEL = _ways("of model")
HARMLESS = _ways("harmless")
HARMLESS_OF_MODEL = _ways("harmless of model")
