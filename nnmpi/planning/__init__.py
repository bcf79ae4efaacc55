"""The step time of an arrangement on a machine that was measured, and the fastest arrangement.

    a rank's step on paper (paper/) ─► StepLog ─┐
                         machine.json ─► Machine ├─► step_time ─► StepTime    terms that add up
                                   Arrangement ─┘

Here: steps on paper (`paper`), what is predicted from their logs, and the search for a layout.
Not here: measuring a machine (`run/measuring.py`), and the command's text (`run/planning`).
Nothing here measures, and no rank is asked.
"""
