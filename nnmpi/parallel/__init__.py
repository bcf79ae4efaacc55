"""Training on many ranks: everything that combines computing with communication.

Here: the arrangement of ranks (`arrangement`) and what executes it: steps, stores, sums, pipelines,
tensor and context parallelism, parameter servers. `strategies` is the only file that knows them
all. Not here: what a step costs (`planning`), epochs (`run`), files and reports (`io`), messages
and collectives (`comm`).
"""
