"""Training beyond memory: the activations of each unit are kept, swapped to disk or recomputed;
optimizer state can be on disk between updates too.

Rules:

- The pages of arrays move, their addresses do not: arrays are in a mapping of a file, whose pages
  the system drops and fetches. So operations and bits are the same as without swapping, and a
  mistake in this folder can only cost time.
- `placement.py` decides for each unit whether to keep, swap or recompute, by a simulation. A run
  waits for free memory by the same rules as the simulation. If you change a rule in one of the two,
  change the other.
- The thread that writes and reads makes system calls only; it runs no code that creates arrays.
- NumPy's allocator hook (NEP 49) puts the arrays of a step into the mapping, so no operation and no
  kernel knows about it. If the thread is late, a page fault reads the page.
- Freed memory keeps its pages and is reused first, since touching a new page takes longer than
  computing with it; pages are dropped if memory would exceed the limit. Pages that belong to no
  array are never written, and those that a checkpoint has read are dropped with the next step.
- The file is allocated at the start, since page by page that takes three times as long. It is twice
  as long as the activations of a micro-batch, as gaps between blocks would leave no room in a
  shorter one. Blocks are unmapped before they are written: otherwise the system interrupts every
  core for each page."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.swapping",),
    uses=("planning",),
    rows={
        "options": {"swapping": "nnmpi.addons.swapping.options:ADDED"},
        "texts": {"residences": "nnmpi.addons.swapping.residences:TEXTS"},
        "event_fields": {"memory": "nnmpi.addons.swapping.placement:FIELDS"},
        "memory_limits": {"memory": "nnmpi.addons.swapping.within_memory:LIMIT"},
    },
)
