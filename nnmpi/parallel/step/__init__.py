"""Runs a training step on one rank: executor, stages and ports, update, traffic.

Rules of `executor.py`:

- No branch depends on the strategy. A new operation is a new row of the table `do` (and more: see
  `schedules/op.py`). The executor decides nothing about gradient buckets: the list says when they
  are gathered and summed.
- No counter lives from step to step: StepState comes in and goes out, and a snapshot contains it.
- The operation NOTE comes when all losses of the rank are known: `loss()` clears the sum, so the
  loss of a forward pass after it would be lost.
- A backward pass stops between units where the list says: the operations in between may send the
  gradients of a unit, or replace its values. A forward pass by autograd cannot stop: where it reads
  values that are not there, its next unit asks for them (`stores/unit_values.py`).
- `give_back` comes before `done`: the gradient of an input is sent from memory that `done` frees
  for the next micro-batch."""
