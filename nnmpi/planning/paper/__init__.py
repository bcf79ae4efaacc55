"""Simulated steps ("on paper"): the step of a rank runs on arrays without data and sends no
message, to find out its memory and communication without running on several ranks.

    Arrangement ─► built (rank.py) ─► executor of the rank ─┬─► exchanges    bytes and seconds
                   PaperComm, PaperStage                    └─► live arrays  memory

The code is that of a run: the rank's store of parameters and gradients, its gradient sums,
optimizer and layers. Its Comms and stages are replaced by ones that log what they are asked to do.
What a run would measure first, and how it then divides the model into stages, are given in the
Arrangement. `rank.py` and `activations.py` compute bytes from the logged exchanges and arrays.
"""
