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
float32 = {peak:.3g}

[products]
share = 0.5
start = {start:.3g}

[memory]
size = {memory}
bandwidth = {moved:.4g}
share = 1.0

[kernel]
launch = 0.0

[near]
alpha = {near_alpha:.3g}
bandwidth = {near:.3g}
share = 0.8

[far]
alpha = {far_alpha:.3g}
bandwidth = {far:.3g}
nics = 1
share = 0.8
"""


class Situation(NamedTuple):
    """A cluster and a model with one layout that is clearly the fastest, in steps of about 10 ms.

    ranks, a_node    of the cluster, and of a node
    d, f, rows       of the model and its batch
    peak             operations a second
    near, far        bytes a second within a node, and of a node to others
    start, alpha     seconds of a product besides its operations, and of a message between nodes
                     besides its bytes
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
    start: float
    alpha: float
    memory: float = 1e9


SITUATIONS = (
    Situation(8, 4, 256, 256, 4096, 2e11, 1e9, 2e8, 1e-5, 1e-4),
    Situation(4, 2, 1024, 4096, 64, 2e12, 5e10, 5e9, 1e-5, 1e-3),
    Situation(8, 2, 1024, 4096, 16, 4e11, 1e10, 2e9, 1e-4, 5e-4),
    Situation(16, 2, 512, 4096, 32, 2e12, 5e9, 1e9, 1e-5, 5e-4),
    Situation(8, 2, 512, 4096, 4096, 1e13, 5e10, 5e9, 2e-4, 1e-5),
    Situation(8, 4, 512, 2048, 32, 2e12, 5e9, 1e8, 2e-4, 1e-5),
    Situation(16, 8, 512, 4096, 64, 2e11, 1e10, 1e8, 5e-5, 1e-4),
    Situation(12, 6, 512, 768, 48, 4e10, 1e9, 5e7, 1e-4, 2e-4),
    Situation(6, 3, 512, 768, 192, 4e12, 2e10, 1e8, 2e-5, 1e-5, 1.1e7),
    Situation(6, 3, 1024, 3072, 24, 4e12, 1e10, 1e9, 5e-5, 1e-3),
    Situation(6, 3, 256, 768, 192, 4e12, 1e10, 2e7, 2e-4, 1e-5, 1e7),
    Situation(8, 2, 512, 512, 128, 2e11, 1e10, 5e7, 2e-4, 1e-4),
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
        self.ranks, speed, wider = s.ranks, rng.uniform(0.75, 1.5), self.model.d / s.d
        self.memory = float(f"{s.memory * wider:.4g}")  # as the file says it
        longer = wider / speed
        self.machine = MACHINE.format(
            a_node=s.a_node,
            peak=s.peak * speed,
            start=s.start * longer,
            memory=self.memory,
            moved=4e12 * speed,
            near_alpha=1e-6 * longer,
            near=s.near * speed,
            far_alpha=s.alpha * longer,
            far=s.far * speed,
        )
