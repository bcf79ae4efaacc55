"""Training on many ranks: where the engine meets the communicator.

Here: the arrangement of ranks (`arrangement`), its step on paper and its price (`paper`,
`planning`), and what executes it: steps, stores, sums, pipelines, tensor and context parallelism,
parameter servers. `strategies` is the one file that knows them all.
Not here: epochs, files and reports (`run`), messages and collectives (`comm`).
"""
