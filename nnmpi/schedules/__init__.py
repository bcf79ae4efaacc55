"""Schedules: which passes, messages and updates each rank makes in a step of pipeline or local-step
training, and in which order; as plain values, which nothing here executes.

Here: the pipeline schedules of `SCHEDULES`, the placement of stages on ranks, the lists of
operations of ranks that follow a schedule, the proof that lists are complete and cannot deadlock
(`lists/`), the exchanges of local steps, and artificial delays of ranks. Not here: the executor of
lists (`parallel.step`), simulated clocks (`addons.simulator`).
"""
