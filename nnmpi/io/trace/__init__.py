"""--trace: what each rank did at which time, in one file and as sums.

recording.py   what a rank records while it runs, in bounded memory
tracing.py     the records of all ranks, on rank 0 and on its clock
summary.py     one table of them, in which waits are divided; seconds of each rank, the bubble
text.py        the text on these sums
chrome.py      the file, which `nnmpi.sim.commands.trace` reads
"""

from nnmpi.io.trace.tracing import Tracer as Tracer
