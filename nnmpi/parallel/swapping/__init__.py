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
- NumPy's allocator hook (NEP 49) puts the arrays of a step into the mapping, so no op and no kernel
  knows about it. If the thread is late, a page fault does its work.
- Freed memory keeps its pages and is reused first, since touching a new page takes longer than
  computing with it; pages are dropped where memory would exceed the limit. Pages that belong to no
  array are never written, and those that a checkpoint has read are dropped with the next step.
- The file is allocated at the start (page by page it takes three times as long), twice as long as
  the activations of a micro-batch: gaps between blocks would leave no room in a shorter one. Blocks
  are unmapped before they are written: otherwise the system interrupts every core for each page.
"""
