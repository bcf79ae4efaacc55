"""Predicts how long a training step of an arrangement (which rank has which part of the model)
takes on a machine, and finds the fastest arrangement.

    lists of a rank, walked (paper/) ─► exchanges ─┐
                            machine.json ─► Machine ├─► step_time ─► StepTime    terms that add up
                                      Arrangement ─┘

This folder has steps on paper (`paper`: what a rank exchanges and holds, found by walking its
lists), predictions from them, and the search for a layout. `run/planning` measures
machines (`run/planning/measuring.py`) and has the text of the command.
"""
