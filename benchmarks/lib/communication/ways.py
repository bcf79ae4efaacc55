"""What benchmarks/communication.py trains, and the ways in which replicas communicate.

All ways have the inner optimizer, the rate and the schedule of data parallelism. Outer rates were
tuned on seed 0 with 4 replicas and are the same for all.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

Options = Mapping[str, Any]


class Subject(NamedTuple):
    """A model and its data: options of training, and how often and on how many samples it is
    evaluated."""

    name: str
    options: Options
    outer: Options
    steps: int
    every: int  # steps from one evaluation to the next
    tested: int  # test samples
    before: int = 0  # steps that one rank makes first, at a constant rate

    def of(self, way: "Way") -> dict[str, Any]:
        """The options of training in a way."""
        outer = self.outer if way.options.get("sync") == "local" else {}
        return {**self.options, **outer, **way.options}


class Way(NamedTuple):
    """How replicas communicate, by the options that differ from those of data parallelism."""

    name: str
    options: Options

    @property
    def period(self) -> int:
        """The number of steps that a run makes at once: those of a round."""
        return int(self.options.get("every", 1))

    def short(self) -> "Way":
        """The way with rounds of two steps."""
        rounds = {"every": 2} if self.period > 1 else {}
        parts = {"fragments": 2, "apply_after": 0} if "fragments" in self.options else {}
        return self._replace(options={**self.options, **rounds, **parts})


AGAINST = "dp"
"""The way that the others are compared with."""

WAYS = {
    AGAINST: Way("data parallelism", {}),
    "local10": Way("local, H = 10", {"sync": "local", "every": 10}),
    "local30": Way("local, H = 30", {"sync": "local", "every": 30}),
    "streaming": Way(
        "streaming, H = 30", {"sync": "local", "every": 30, "fragments": 3, "apply_after": 1}
    ),
    "ring": Way("gossip, ring", {"sync": "gossip", "every": 30, "graph": "ring"}),
    "exponential": Way(
        "gossip, exponential", {"sync": "gossip", "every": 30, "graph": "exponential"}
    ),
    "topk": Way("top-k, 1%", {"compress": "topk:0.01"}),
    "sign": Way("sign", {"compress": "sign"}),
    "powersgd": Way("PowerSGD, rank 4", {"compress": "powersgd:4"}),
    "int8": Way("int8", {"compress": "int8"}),
}

GPT = {
    "model": "gpt:4x4x128",
    "data": "text",
    "context": 32,
    "batch_size": 16,
    "optimizer": "adamw",
    "lr": 3e-3,
    "lr_schedule": "warmup:30+cosine",
}
CNN = {**GPT, "model": "mnist-cnn", "data": "mnist", "batch_size": 64}
del CNN["context"]
OUTER = {"outer_lr": 0.7, "outer_momentum": 0.5}

SUBJECTS = {
    "gpt": Subject("gpt:4x4x128, trained", {**GPT, "lr": 1e-3}, OUTER, 150, 30, 256, 300),
    "new": Subject("gpt:4x4x128, new", GPT, OUTER, 300, 60, 256),
    "cnn": Subject("mnist-cnn", CNN, OUTER, 180, 60, 2000),
}
