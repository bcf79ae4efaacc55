"""How long a step of an arrangement takes, from what was measured of a machine.

    machine.json ─► Machine ─┐
                             ├─► step_time ─► StepTime    terms that add up
    Arrangement ─────────────┘

Pure: nothing here measures, and nobody is asked.
"""
