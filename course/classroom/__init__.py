"""The grader of the course: assignments are graded by law, bytes and time (`nnmpi course`).

nnmpi course check DIR    loads the checks of the assignment, starts workers, adds up points
  └─ a worker             a process with ranks as threads, or mpirun; loads adapters.py for each
     ├─ rank, rank, ...   rank; a check runs on all of them and finds what is wrong first
     └─ monitor           reports where ranks wait if nothing goes on, and ends the process
"""

from classroom.check import Check, FaultError, Finding, Mutant
from classroom.collectives import Call, Collectives
from classroom.compare import any_rank, counted, differs, explained, first, needed, shape_of
from classroom.messages import Messages

__all__ = [
    "Call",
    "Check",
    "Collectives",
    "FaultError",
    "Finding",
    "Messages",
    "Mutant",
    "any_rank",
    "counted",
    "differs",
    "explained",
    "first",
    "needed",
    "shape_of",
]
