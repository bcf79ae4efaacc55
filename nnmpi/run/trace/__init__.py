"""--trace: what each rank did when, in one file and as sums.

recording.py   what a rank notes while it runs, in memory that does not grow
tracing.py     the records of all ranks, on the first rank and on its clock
waits.py       one table of them; a wait is divided where the other side was there
summary.py     seconds that each rank computed, communicated and waited; the bubble of a pipeline
background.py  works that went on while ranks computed, on lanes of their own; counters
chrome.py      the file, which `nnmpi.sim.commands.trace` reads
"""

from nnmpi.run.trace.tracing import Tracer as Tracer
