"""Schedules as values: the operations of a rank in a step, and their order.

Here: the pipeline schedules of `SCHEDULES`, the placement of stages on ranks, the lowering of
schedules to programs with sends and receives, the proof that a program is complete and cannot
deadlock, the exchanges of local steps, and artificial delays of ranks. Not here: the executor of
programs (`parallel.step`), simulated clocks (`sim.pipeline`).
"""
