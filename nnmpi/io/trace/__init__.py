"""--trace: the times of each rank's operations, in one file and as sums.

recording.py   records the operations of a rank while it runs, in bounded memory
tracing.py     gathers the records of all ranks on rank 0, and converts them to its clock
summary.py     joins them in one table, divides the waits, and sums each rank's seconds and the
               pipeline's bubble
text.py        the text on these sums
chrome.py      the file, which `nnmpi.sim.commands.trace` reads

A trace has the first 400,000 events and operations of each rank, up to the end of a step.
Communication in the background is drawn on separate lines of the timeline, from its start to when
the rank noticed its end; sums of seconds count only the waits for it. Counters show the bytes in
flight, and the memory of the process after each pass and update. The exchange with a parameter
server and sums of --reproducible between slices count entirely as communication; NCCL's messages
are not recorded. The clocks of hosts are compared once, at the start.
"""

from nnmpi.io.trace.tracing import Tracer as Tracer
