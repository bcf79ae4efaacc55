"""The step of a rank as a list of operations: a value made by pure passes, and proved.

    arrangement ──► chain    units (segments of the model) and buckets of this rank
                      │
    schedule ─────────┴──► units_of ─► with_messages ─► with_sums ─► with_gathers
                                                                           │
                                                                 proof ◄─ list

Nothing here runs a list or knows arrays. `op.py` has the vocabulary.
"""
