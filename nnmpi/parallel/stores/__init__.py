"""Stores of training: where the parameters and gradients of a rank are, and how they are summed.

                     flat                    flat_grad
LocalStore           a copy on each rank     this rank's; the sums over dp replace it
NodeStore            one memory for a node   this rank's segment; the sums are in one memory for a
                                             node, and each rank updates the part that it summed
ZeroStore            a copy on each rank,    this rank's, or the shards that it updates
                     or its shards
VersionStore         the newest version      this rank's
SliceStore           a copy on each rank     a stack of buffers, one for each partial sum of slices
ServedStore          a copy on each rank     a worker's; a server has those of its slice

`table.py` has the one of each kind of store that arrangements name. A store has `masters` that the
optimizer updates, if these have another type than parameters (`masters.py`).
"""
