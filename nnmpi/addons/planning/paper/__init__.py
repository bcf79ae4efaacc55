"""Steps on paper: what a rank exchanges and holds in a step, which does not run.

    list of a rank ──────────┐
    list of calls of a pass ─┴─► walked (rank.py, activations.py) ─► exchanges, live arrays
    built store, optimizer ────► asked (built.py)                 ─► memory between steps

Passes are recorded by the recorder of runs (`recording.py`), on arrays without data; layers that
read values, on small arrays with numbers (`on_numbers.py`). What a run would measure first, and how
it then divides the model into stages, are given in the Arrangement.
"""
