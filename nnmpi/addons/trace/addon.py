"""The option --trace: records the times of each rank's operations, writes them to one file, and
sums them up.

recording.py   records the operations of a rank while it runs, in bounded memory
tracing.py     gathers the records of all ranks on rank 0, and converts them to its clock
summary.py     joins all records in one table; divides each wait for other ranks into idle time and
               communication; computes each rank's seconds, and the bubble (idle time) of pipelines
text.py        formats these results as text
chrome.py      writes the file, which `nnmpi.addons.simulator.commands.trace` reads

A trace has the first 400,000 events and operations of each rank, up to the end of a step.
Communication in the background is drawn on separate lines of the timeline, from its start to when
the rank noticed its end; sums of seconds count only the waits for it. Counters show the bytes in
flight, and the memory of the process after each pass and update. Two kinds of exchange count
entirely as communication, including waits: those with a parameter server, and those by which
--reproducible sums gradients. NCCL's messages are not recorded. The clocks of hosts are compared
once, at the start.
"""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.trace",),
    uses=("simulator",),
    rows={
        "options": {"trace": "nnmpi.addons.trace.options:ADDED"},
        "texts": {"trace": "nnmpi.addons.trace.text:TEXTS"},
        "run_parts": {"trace": "nnmpi.addons.trace.tracing:PARTS"},
    },
)
