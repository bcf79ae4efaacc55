"""A training step on one rank: the executor, its ports, the update, and what is counted of a step.

Rules of `executor.py`:

- No branch on a strategy; a new operation is a row of `do` (and more: see `schedules/op.py`).
- No counter lives from step to step: StepState comes in and goes out, and a snapshot contains it.
- REDUCE comes when all losses of the rank are known: `loss()` clears the sum, so the loss of a
  forward pass after it would be lost.
- The sync hears of leaves only in the last backward pass of a stage, unless it asks for every pass:
  a gradient to which a later micro-batch adds is not final.
- `give_back` comes before `done`: the gradient of an input is sent from memory that `done` frees
  for the next micro-batch.
"""
