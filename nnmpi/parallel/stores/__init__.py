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

`table.py` has the one of each kind of store that arrangements name.

Masters: float32 values that the optimizer updates, of which parameters of 16 bits are the
rounding.

    F, B          values and gradients in 16 bits; losses, and so gradients, times the loss scale
    sum           in 16 bits, with partial sums in float32, or narrow ones
    update        in one pass over memory (`kernels/steps.py`): masters whose rounding is not the
                  value any more take the value, are moved by gradients that become float32,
                  unscaled and clipped, and values = masters, rounded

A `LocalStore` keeps them, if there is a loss scale. A rank has the masters of what it updates: all
of them in replicas, a part on a node that shares its parameters and in ZeRO. Files, digests and
snapshots have masters. Values that are written from outside win over masters of which they are not
the rounding.

bytes a parameter (Adam)    values   gradients   masters and sums
replicas                    2        2           12
zero 1                      2        2           12 / d
zero 2                      2        4 / d       12 / d
zero 3                      -        4 / d       12 / d

Zero 3 keeps masters alone between steps, and rounds them where it gathers them.
"""
