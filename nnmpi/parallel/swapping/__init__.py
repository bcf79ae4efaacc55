"""Activations of a rank beyond its memory: written to disk and read again, or computed again; its
parameters, gradients and optimizer state on disk, but for those in use.

Rules:

- Addresses stay and pages go: arrays lie in a mapping of a file, of which the system drops and
  fetches pages. So ops, vjps and bits are what they are without it, whatever is done wrong here.
- Where a unit is, the arrangement says (`arrangement/residence.py`), and the run waits for room as
  its clocks do. A rule that changes in one of the two changes in the other.
- The thread calls the system, and no code that makes arrays.
"""
