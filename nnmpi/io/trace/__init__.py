"""--trace: what each rank did when, in one file and as sums.

recording.py   what a rank notes while it runs, in memory that does not grow
tracing.py     the records of all ranks, on the first rank and on its clock
summary.py     one table of them, in which waits are divided; seconds of each rank, the bubble
chrome.py      the file, which `nnmpi.sim.commands.trace` reads
"""

from nnmpi.io.trace.tracing import Tracer as Tracer
