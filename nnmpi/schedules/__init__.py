"""Schedules: which passes, messages and updates each rank makes in a step of pipeline or local-step
training, and in which order; as plain values, which nothing here executes.

Here: the pipeline schedules of `SCHEDULES`, the placement of stages on ranks, the conversion of
schedules to programs with sends and receives, the proof that a program is complete and cannot
deadlock, the exchanges of local steps, and artificial delays of ranks. Not here: the executor of
programs (`parallel.step`), simulated clocks (`sim.pipeline`).
"""
