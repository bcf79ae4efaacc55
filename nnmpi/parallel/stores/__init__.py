"""Stores: where the parameters and gradients of a rank are in memory, and how gradients are summed.

                     flat (values)           flat_grad (gradients)
LocalStore           a copy on each rank     this rank's; the sums over dp replace it
NodeStore            shared by the node      this rank's segment; the sums are shared by the node,
                                             and each rank updates the part that it has summed
ZeroStore            a copy on each rank,    this rank's, or the shards that it updates
                     or its shards

`arrangement/store_kinds.py` lists the kinds of stores that options ask for.

In mixed precision a store also keeps masters: float32 values that the optimizer updates, and of
which the 16-bit parameters are the rounding.

    F, B          values and gradients in 16 bits; losses, and so gradients, times the loss scale
    sum           in 16 bits; partial sums in float32, or in 16 bits too
    update        in one pass over memory (`kernels/steps.py`): masters that no longer round to the
                  value take the value; gradients become float32, unscaled and clipped, and move
                  the masters; values = masters, rounded

A `LocalStore` keeps masters if there is a loss scale. A rank has the masters of what it updates:
all of them in replicas, a part on a node that shares its parameters and in ZeRO. Files, digests and
snapshots contain masters. If a value was written from outside, so that its master no longer rounds
to it, the value wins.

bytes a parameter (Adam)    values   gradients   masters and optimizer state
replicas                    2        2           12
zero 1                      2        2           12 / d
zero 2                      2        4 / d       12 / d
zero 3                      -        4 / d       12 / d

ZeRO 3 keeps only masters between steps, and rounds them where it gathers them.
"""
