"""One rank or two are killed, on threads, at random operations of a run in a random layout.

The others end in time, with the losses, epochs and parameters of the run that nobody leaves, and
each step and event is told once.
"""

import traceback
from pathlib import Path

import numpy as np
from fuzzing import GOOD, Fault, Outcome
from helpers.training import recovered
from helpers.training.recovered import LAYOUTS

from nnmpi.comm.transport.base import AbortedError
from nnmpi.run.recovery.recovery import NothingLeftError


def case(rng: np.random.Generator, folder: Path) -> Outcome:
    name = str(rng.choice(list(LAYOUTS)))
    ranks = recovered.victims(name)
    wanted, operations = recovered.whole(name)
    count = int(rng.integers(1, min(ranks, 3)))
    victims = rng.choice(ranks, size=count, replace=False).tolist()
    killed = {rank: int(rng.integers(1, 1.2 * operations[rank])) for rank in victims}
    what = f"{name}, killed {killed}"
    try:
        recovered.check(recovered.run(name, killed), wanted)
    except NothingLeftError as error:  # of one loss no part may be gone
        return GOOD if count > 1 else Outcome(Fault.LOST, f"{what}: {error}")
    except AbortedError as error:
        return Outcome(Fault.HUNG, f"{what}: {error}")
    except Exception:
        return Outcome(Fault.WRONG, f"{what}: {traceback.format_exc()[-1500:]}")
    return GOOD
