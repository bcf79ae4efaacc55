"""Predicts how long a step of an arrangement takes on a machine, and finds the fastest arrangement.

    a rank's step on paper (paper/) ─► StepLog ─┐
                         machine.json ─► Machine ├─► step_time ─► StepTime    terms that add up
                                   Arrangement ─┘

Here: steps on paper (`paper`), predictions from their logs, and the search for a layout. Elsewhere:
measuring a machine (`run/planning/measuring.py`), and the text of the command (`run/planning`).
"""
