"""Passes of users' modules, drawn at random: replayed with the bits of the tape, or run by it.

A module is made of a few lines. Some depend on shapes, on modes or on the step; some read or change
state of Python; some write in place. A callback changes some of that state between steps.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.training.pipelined import digits

import nnmpi
from nnmpi import Config, Tensor, Trainer, nn
from nnmpi.comm import comm_self
from nnmpi.data import Dataset, Split
from nnmpi.io.output import Event, NullReport
from nnmpi.nn import functional
from nnmpi.parallel.step.stage_lists import ReplayedStages

MODULES = 500
AT_ONCE = 25

LINES = {
    # of calls that may be replayed
    "x = self.a(x)": "",
    "x = F.relu(x) * self.scale": "",
    "x = x + self.b(x)": "",
    "x = self.norm(x)": "",
    "x = self.drop(x)": "",
    "x = x * (2.0 if len(x) > 12 else 0.5)": "",
    "x = x * 3 if self.training else x": "",
    "x = x + x.mean(0)": "",
    "x = self.act(x)": "",
    "x = x * type(self).of_class": "",
    "x = x * factor": "",
    "x = x * twice(self.scale)": "",
    "x = x * type(self).twice(1.0)": "",
    "x = x * getattr(self, 'extra', 0.5)": "",
    "x = nnmpi.cat((x[:, :16], x[:, 16:] * 2), 1)": "",
    "x = x * self.options[0]": "",
    "x = x * Tensor(np.arange(32) / 32)": "",
    "y = x * 1; y += 0.5; x = y": "",
    "x = self.helped(x)": "",
    "self.seen += 1": "buffer",
    # of calls that depend on values or on state that changes
    "x = x * 2 if float(x.sum()) > 0 else x": "never",
    "self.count = self.count + 1; x = x * self.count": "never",
    "self.table.append(1); x = x * len(self.table)": "never",
    "x = x * self.table[0]": "never",
    "x = x * self.names['scale']": "never",
    "x = x * random.random()": "never",
    "x = x * np.random.rand()": "never",
    "seen.append(1); x = x * len(seen)": "never",
    "x = x * seen[0]": "never",
    "x = x * next(ticks)": "never",
    "self.seen = self.seen + 1; x = x * float(self.seen[0])": "never",
    "type(self).of_class += 0.1; x = x * type(self).of_class": "never",
    "x = x * cache(x)": "never",
    "x = x * self.settings.scale": "never",
    "x = x * 2 if np.asarray(x.data).max() > 0 else x": "never",
    "x = x * 2 if x.array.view(np.ndarray).max() > 0 else x": "never",
    "x = x * safe(x)": "never",
    "x = x * self.constant": "never",
    "LOG.append(1); x = x * len(LOG)": "never",
    "x = x * LOG[0]": "never",
    "x = x * lookup('scale')": "never",
    "global COUNT; COUNT = 3 - COUNT; x = x * COUNT": "never",
}

CHANGES: tuple[Callable[[Any, Any], object], ...] = (
    lambda model, own: None,
    lambda model, own: setattr(model, "scale", model.scale + 0.25),
    lambda model, own: setattr(type(model), "of_class", type(model).of_class + 0.25),
    lambda model, own: own["set_factor"](),
    lambda model, own: setattr(model, "options", (model.options[0] + 1,)),
    lambda model, own: setattr(model, "act", functional.tanh),
    lambda model, own: setattr(model.drop, "p", 0.5),
    lambda model, own: setattr(type(model), "of_class", int(type(model).of_class)),
    lambda model, own: setattr(type(model), "twice", staticmethod(lambda v: 4 * v)),
    lambda model, own: delattr(model, "extra"),
    lambda model, own: setattr(type(model).Settings, "scale", 3.0),
    lambda model, own: model.constant.data.__imul__(2),
    lambda model, own: model.norm.eval(),
    lambda model, own: model.a.requires_grad_(False),
    lambda model, own: own["seen"].append(3),
    lambda model, own: model.table.__setitem__(0, model.table[0] + 1),
    lambda model, own: model.names.__setitem__("scale", 2.0),
    lambda model, own: model.b.weight.data.__imul__(2),
    lambda model, own: model.b.register_forward_hook(lambda m, given, y: y * 2),
)

SOURCE = """
COUNT, LOG = 1, [1.0]
def make():
    lookup = {"scale": 2.0}.get
    factor, seen, ticks = 1.5, [1], iter(range(1, 1000))
    def set_factor():
        nonlocal factor
        factor += 0.5
    def twice(v):
        return 2 * v
    def cache(x, known=[]):
        known.append(1)
        return len(known)
    def safe(x):
        try:
            return float(x.data.max())
        except Exception:
            return 1.0
    class Drawn(nn.Module):
        of_class = 1.25
        twice = staticmethod(lambda v: 2 * v)
        SETTINGS
        def __init__(self):
            self.a, self.b, self.out = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 10)
            self.first, self.norm = nn.Linear(64, 32), nn.BatchNorm1d(32)
            self.drop = nn.Dropout(0.2)
            self.scale, self.count, self.options, self.act = 1.0, 0, (1.0, 2), F.relu
            self.extra, self.unread = 2.0, UNREAD
            TABLES
            self.register_buffer("seen", np.zeros(1))
        def helped(self, x):
            return x * self.scale
        def described(self):
            return self.unread
        def forward(self, x):
            x = self.first(x.reshape(len(x), 64))
            LINES
            return self.out(x)
    return Drawn, {"set_factor": set_factor, "seen": seen}
"""
TABLES = {
    "table": "self.table = [1.0]",
    "names": "self.names = {'scale': 1.0}",
    "constant": "self.constant = Tensor(np.ones(32))",
    "settings": "self.settings = type(self).Settings",
}
"""Attributes for which a module is never replayed: they are there if a line reads them."""


def tables(lines: list[str]) -> str:
    return "; ".join(v for k, v in TABLES.items() if any(k in line for line in lines)) or "pass"


def drawn(seed: int) -> tuple[Callable[[], tuple[Any, dict[str, Any]]], list[str], Any]:
    """A function that makes a class of modules, with its own state; its lines; and a change."""
    of = random.Random(seed)
    fine = [line for line, when in LINES.items() if when != "never"]
    others = [line for line, when in LINES.items() if when == "never"]
    lines = of.sample(fine, of.randint(2, 6))
    if of.random() < 0.5:
        lines.insert(of.randrange(len(lines) + 1), of.choice(others))
    change = of.choice(CHANGES)
    has_class = any("settings" in line for line in lines)
    text = SOURCE.replace("TABLES", tables(lines))
    by_name = any("getattr" in line for line in lines)
    text = text.replace("UNREAD", "0" if by_name else "[1]")
    text = text.replace("SETTINGS", "Settings = type('Settings', (), {'scale': 1.0})" * has_class)
    text = text.replace("LINES", "\n            ".join("; ".join(lines).split("; ")))
    space: dict[str, Any] = {
        "nnmpi": nnmpi, "nn": nn, "F": functional, "np": np, "Tensor": Tensor, "random": random,
    }  # fmt: skip
    exec(text, space)
    return space["make"], lines, change


class Changes:
    """Changes the model after its third step."""

    def __init__(self, change: Callable[[Any, Any], object], own: Any) -> None:
        self._change, self._own = change, own
        self.losses = list[float]()

    def on_step(self, trainer: Trainer, event: Event) -> None:
        self.losses.append(event["loss"])
        if event["step"] == 3:
            try:
                self._change(trainer.model, self._own)
            except AttributeError:  # the module has no table
                return


def data() -> Dataset:
    """Three batches of 16 samples, and one of 7."""
    whole = digits()
    x = whole.train.x[:55].astype(np.float64)
    return whole._replace(train=Split(x, whole.train.y[:55]))


def trained(seed: int, compiled: bool) -> tuple[list[float], dict[str, bytes]]:
    make, _, change = drawn(seed)
    build, own = make()
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the drawn modules use it
    heard = Changes(change, own)
    options: dict[str, Any] = {"optimizer": "sgd", "lr": 0.01, "dtype": "float64", "quiet": True}
    config = Config(batch_size=16, steps=7, epochs=2, compile=compiled, **options)
    with Trainer(config, build, data(), comm_self(), callbacks=[heard]) as trainer:
        trainer.fit(NullReport())
        state = {k: np.asarray(v).tobytes() for k, v in trainer.model.state_dict().items()}
    return heard.losses, state


@pytest.mark.one_in(10)
@pytest.mark.parametrize("first", range(0, MODULES, AT_ONCE))
def test_random_modules_have_the_bits_of_the_tape(first: int, made: list[ReplayedStages]) -> None:
    replayed = Counter[bool]()
    for seed in range(first, first + AT_ONCE):
        _, lines, _ = drawn(seed)
        try:
            tape = trained(seed, compiled=False)
        except ValueError as error:  # of a module that cannot be trained at all
            with pytest.raises(type(error)):
                trained(seed, compiled=True)
            continue
        made.clear()
        other = trained(seed, compiled=True)
        assert other == tape, f"seed {seed}: {lines}"
        (lists,) = made[0].lists.values()
        never = [line for line in lines if LINES[line] == "never"]
        assert not (never and lists.replays), f"seed {seed}: {never} was replayed"
        replayed[lists.replays > 0] += 1
    assert replayed[True] >= AT_ONCE / 4
