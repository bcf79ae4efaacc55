"""A rank's step on paper: its own store, sums, update and layers, on arrays without numbers.

    Arrangement ─► build (rank.py) ─► executor of the rank ─┬─► exchanges (log.py)   bytes, seconds
                   PaperComm (comm.py), stages (stage.py)   └─► arrays alive         memory

No rank talks to another one here, and nothing is computed. What a run would measure is a value of
the arrangement. Folds over what was logged are in `traffic.py`, `memory.py` and `activations.py`.
"""
