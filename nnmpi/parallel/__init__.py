"""Training on many ranks: where the engine meets the communicator.

Here: the arrangement of ranks (`arrangement`) and what executes it: steps, stores, sums, pipelines,
tensor and context parallelism, parameter servers. `strategies` is the one file that knows them all.
Not here: what a step costs (`planning`), epochs (`run`), files and reports (`io`), messages and
collectives (`comm`).
"""
