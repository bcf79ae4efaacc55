"""Runs a training step on one rank: the executor of the step's list of operations, the input and
output of stages, the update, and the traffic of a step.

Rules of `executor.py`:

- No branch on a strategy; a new operation is a row of `do` (and more: see `step_list/op.py`). The
  executor decides nothing about buckets: when they are gathered and summed stands in the list.
- No counter lives from step to step: StepState comes in and goes out, and a snapshot contains it.
- NOTE comes when all losses of the rank are known: `loss()` clears the sum, so the loss of a
  forward pass after it would be lost.
- A backward pass stops between units where the list says: what comes in between may send the
  gradients of a unit, or replace its values. A forward pass by autograd cannot stop: where it reads
  values that are not there, the list goes on within it, up to its next unit.
- `give_back` comes before `done`: the gradient of an input is sent from memory that `done` frees
  for the next micro-batch.
"""
