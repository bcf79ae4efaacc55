"""The step of a rank as a list of operations (passes, messages, sums of gradients, gathers of
parameters, the update): computed by pure functions, and proved by tests and by `--list`.

    arrangement ──► chain    units (parts of the model, usually layers) and buckets of this rank
                      │
    schedule ─────────┴──► units_of ─► with_messages ─► with_sums ─► with_gathers
                                                                           │
                                                                 proof ◄─ list

Passes, messages and the proof are in `schedules/lists/`, the kinds of operations in
`schedules/op.py`. Nothing here runs a list or knows arrays.
"""
