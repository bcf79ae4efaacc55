"""Predicts how long a step of an arrangement takes on a machine, and finds the fastest arrangement.

    a rank's step on paper (paper/) ─► StepLog ─┐
                         machine.json ─► Machine ├─► step_time ─► StepTime    terms that add up
                                   Arrangement ─┘

This folder has steps on paper (`paper`: a rank's step, run on arrays without data), predictions
from their logs, and the search for a layout. `run/planning` measures machines
(`run/planning/measuring.py`) and has the text of the command.
"""
