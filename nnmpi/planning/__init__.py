"""Predicts how long a training step of an arrangement (which rank has which part of the model)
takes on a machine, and finds the fastest arrangement.

    a rank's step on paper (paper/) ─► StepLog ─┐
                         machine.json ─► Machine ├─► step_time ─► StepTime    terms that add up
                                   Arrangement ─┘

This folder has steps on paper (`paper`: a rank's step, run on arrays without data and without
messages), predictions from their logs, and the search for a layout. `run/planning` measures
machines (`run/planning/measuring.py`) and has the text of the command.
"""
