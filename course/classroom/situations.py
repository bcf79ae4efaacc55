"""The cluster and the model of each student of the assignment layouts."""

from typing import Any, NamedTuple

import numpy as np

MACHINE = """title = "the machine of one student"
ranks = {a_node}
device = "cpu"
flash = false
hides = []
divides = []

[peak]
float32 = {peak:.6g}

[products]
share = 0.5
start = {tick:.3g}

[memory]
size = {memory}
bandwidth = {moved:.4g}
share = 1.0

[kernel]
launch = 0.0

[near]
alpha = {tick:.3g}
bandwidth = {near:.6g}
share = 0.8

[far]
alpha = {latency:.3g}
bandwidth = {far:.6g}
nics = 1
share = 0.8
"""


class Situation(NamedTuple):
    """A cluster and a model with one layout that is clearly the fastest.

    ranks, a_node    of the cluster, and of a node
    d, f, rows       of the model and its batch
    peak             operations a second
    near, far        bytes a second within a node, and of a node to others
    memory           bytes of a rank
    """

    ranks: int
    a_node: int
    d: int
    f: int
    rows: int
    peak: float
    near: float
    far: float
    memory: float


SITUATIONS = (
    Situation(14, 7, 96, 48, 56, 3.5e12, 1.5e10, 1.8e8, 6.3e7),
    Situation(9, 3, 288, 384, 288, 3.5e12, 7.5e10, 7.1e10, 6.6e8),
    Situation(10, 5, 352, 1488, 10, 6.6e11, 1.2e9, 2.2e7, 3.3e8),
    Situation(8, 2, 384, 1488, 512, 1.4e13, 7.3e10, 5.8e10, 1.6e9),
    Situation(4, 2, 320, 48, 16, 8.9e13, 4.3e9, 3.2e9, 2.5e7),
    Situation(6, 3, 64, 48, 384, 2.3e11, 8.2e9, 3.9e9, 1.2e8),
    Situation(9, 3, 320, 48, 9, 5.7e12, 5e9, 2.7e9, 3e7),
    Situation(8, 4, 192, 1344, 16, 6.3e12, 2.7e10, 3.7e8, 1.7e8),
    Situation(10, 5, 128, 480, 320, 3.8e12, 7.3e10, 7.2e10, 3.6e8),
    Situation(9, 3, 480, 48, 72, 1.7e11, 2.5e9, 2.8e7, 2.6e8),
    Situation(6, 3, 512, 864, 6, 3.6e8, 6.4e9, 1.1e8, 2.7e8),
    Situation(8, 2, 320, 48, 64, 3.4e11, 6.5e10, 4.4e10, 1.4e8),
    Situation(10, 5, 128, 1296, 10, 3.8e11, 1.1e9, 3.5e8, 8.3e6),
    Situation(14, 7, 512, 816, 14, 4.7e13, 9e10, 2.8e9, 3.2e8),
)
"""The situations of students. Each has another fastest (tp, pp): no answer is right for many."""


class Model(NamedTuple):
    """Two blocks of linear layers, d -> f -> d, and the rows of a batch."""

    d: int
    f: int
    rows: int

    @property
    def options(self) -> dict[str, Any]:
        """The options of a Config, but for the layout."""
        d, f = self.d, self.f
        data, name = f"synthetic:{d}:{d}:8192", f"mlp:{d}-{f}-{d}-{f}-{d}"
        return {"model": name, "data": data, "batch_size": self.rows}


class Numbers:
    """The cluster and the model of a student: a situation, scaled by the seed.

    Seconds of each layout are proportional to d and to 1 / speed, so no layout gains or loses.
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 1])
        self.situation = s = SITUATIONS[rng.integers(len(SITUATIONS))]
        self.model = Model(16 * round(s.d * rng.uniform(0.8, 1.25) / 16), s.f, s.rows)
        self.ranks, speed, wider = s.ranks, rng.uniform(0.5, 2.0), self.model.d / s.d
        self.memory = float(f"{s.memory * wider:.4g}")  # as the file says it
        self.machine = MACHINE.format(
            a_node=s.a_node,
            peak=s.peak * speed,
            memory=self.memory,
            moved=4e12 * speed,
            near=s.near * speed,
            far=s.far * speed,
            tick=1e-6 * wider / speed,
            latency=4e-6 * wider / speed,
        )
