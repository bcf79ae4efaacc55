"""Schedules: which passes, messages and updates each rank makes in a step of pipeline or local-step
training, and in which order; as plain values, and their proof (`lists/`). Not here: the executor of
lists (`parallel.step`), simulated clocks (`addons.simulator`)."""
