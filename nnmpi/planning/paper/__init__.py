"""A rank's step on paper: its own store, sums, update and layers, on arrays without numbers.

    Arrangement ─► built (rank.py) ─► executor of the rank ─┬─► exchanges    bytes and seconds
                   PaperComm, PaperStage                    └─► live arrays  memory

No rank talks to another one here, and nothing is computed. What a run would measure is a value of
the arrangement. Folds over what was logged are in `rank.py` and `activations.py`.
"""
