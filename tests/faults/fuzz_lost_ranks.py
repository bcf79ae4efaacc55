"""Ranks of a fault-tolerant job are killed at random moments of any kind of work.

The others go on, and end: no job hangs. Where a rank dies while others make a communicator, the
library may end one of those too.
"""

import re
from pathlib import Path

import numpy as np
from fuzzing import GOOD, Fault, Outcome
from helpers import lostranks, mpijob

LIMIT = 60.0  # seconds for a job


def case(rng: np.random.Generator, folder: Path) -> Outcome:
    ranks, work = int(rng.integers(2, 5)), str(rng.choice(list(lostranks.WORK)))
    program, seed = Path(lostranks.__file__), int(rng.integers(1 << 30))
    arguments = (ranks, program, "random", work, str(seed))
    ended = mpijob.run(*arguments, timeout=LIMIT, fault_tolerant=True)
    what = f"{ranks} ranks, {work}, seed {seed}: status {ended.status}; {ended.err[-3000:]}"
    if ended.status is None:
        return Outcome(Fault.HUNG, what)
    left = re.findall(r"^left: ([\d ]+)$", ended.out, re.M)
    crashed = "Segmentation fault" in ended.err
    if len(left) == 1 or crashed:
        return GOOD
    return Outcome(Fault.LOST, what)
