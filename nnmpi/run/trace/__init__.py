"""--trace: what each rank did when, in one file and as sums.

recording.py   what a rank notes while it runs, in memory that does not grow
clock.py       how far the clocks of ranks are apart
gather.py      the records of all ranks, on the first rank and on its clock
waits.py       a wait is divided: until the other side was there, and from then on
summary.py     seconds that each rank computed, communicated and waited
bubble.py      idle time of a pipeline, measured and simulated
chrome.py      the file, which `nnmpi.sim.trace_file` reads
"""

from nnmpi.run.trace.tracing import Tracer as Tracer
from nnmpi.run.trace.tracing import tracer as tracer
