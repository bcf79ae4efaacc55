"""The grader of the course: assignments are graded by law, bytes and time (`nnmpi course`).

nnmpi course check DIR    loads the checks of the assignment, starts workers, adds up points
  └─ a worker             a process with ranks as threads, or mpirun; signs what it reports
     ├─ rank, rank, ...   a check runs on all of them and finds what is wrong first
     │    │  ▲            asks: loads adapters.py for each rank, calls its functions
     │    ▼  │            answers: values, and calls of the rank's Comm
     │  the process that runs adapters.py
     └─ monitor           reports where ranks wait if nothing goes on, and ends the process
"""

from classroom.check import Check, FaultError, Finding, Mutant
from classroom.collectives import Collectives
from classroom.compare import (
    any_rank,
    apart,
    counted,
    differs,
    explained,
    first,
    needed,
    number,
    shape_of,
)
from classroom.messages import Messages

__all__ = [
    "Check",
    "Collectives",
    "FaultError",
    "Finding",
    "Messages",
    "Mutant",
    "any_rank",
    "apart",
    "counted",
    "differs",
    "explained",
    "first",
    "needed",
    "number",
    "shape_of",
]
