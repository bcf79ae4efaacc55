"""The step of a rank as a list of operations, computed by pure functions, and proved.

    arrangement ──► chain    units (parts of the model, usually layers) and buckets of this rank
                      │
    schedule ─────────┴──► units_of ─► with_messages ─► with_sums ─► with_gathers
                                                                           │
                                                                 proof ◄─ list

Passes, messages and the proof are in `schedules/lists/`, the kinds of operations in
`schedules/op.py`. Nothing here runs a list or knows arrays.
"""
