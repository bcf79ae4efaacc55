"""Steps on paper: a rank's own store, gradient sums, update and layers, run on arrays without data.

    Arrangement ─► built (rank.py) ─► executor of the rank ─┬─► exchanges    bytes and seconds
                   PaperComm, PaperStage                    └─► live arrays  memory

A step on paper sends no message and computes no value. Results that a run would measure, such as
the cut of the model, are part of the arrangement. `rank.py` and `activations.py` compute bytes from
the log of exchanges and arrays.
"""
