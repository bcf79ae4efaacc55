"""Training beyond memory: activations are swapped to disk or recomputed, and optimizer state is on
disk between updates.

Rules:

- Addresses stay, pages move: arrays are in a mapping of a file, whose pages the system drops and
  fetches. So ops, vjps and bits are the same as without it, and a mistake in this folder can only
  cost time.
- A choice says where each unit is (`residence.py`), and the run waits for
  room in the same way as its simulated clocks do. If you change a rule in one of the two, change
  the other.
- The thread makes system calls only; it runs no code that creates arrays.
"""
