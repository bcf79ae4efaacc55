"""A training step on one rank: the executor, its ports, what it records, the update.

Rules of `executor.py`:

- No branch on a strategy; a new operation is a row of `do` (and more: see `schedules/op.py`).
- No counter is kept from step to step: StepState comes in and goes out, and a snapshot has it.
- REDUCE comes when all losses of the rank are known: `loss()` empties its sum, so a forward pass
  behind it would not be counted.
- The sync hears of leaves in the last pass of a stage, unless it asks for each: a gradient to which
  a later micro-batch adds is not final.
- `give_back` comes before `done`: the gradient of an input is sent from the memory that `done` lets
  the next micro-batch have.
"""
