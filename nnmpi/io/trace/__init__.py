"""--trace: what each rank did at which time, in one file and as sums.

recording.py   what a rank records while it runs, in bounded memory
tracing.py     the records of all ranks, on rank 0 and on its clock
summary.py     one table of them, in which waits are divided; seconds of each rank, the bubble
text.py        the text on these sums
chrome.py      the file, which `nnmpi.sim.commands.trace` reads

A trace has the first 400,000 events and operations of each rank, up to the end of a step. What goes
on while a rank does other work has lanes of its own, from its start to when the rank noticed its
end; sums of seconds count only the waits for it. Counters show the bytes under way, and the memory
of the process after each pass and update. The exchange with a parameter server and sums of
--reproducible between slices count entirely as communication; NCCL's messages are not recorded. The
clocks of hosts are compared once, at the start.
"""

from nnmpi.io.trace.tracing import Tracer as Tracer
