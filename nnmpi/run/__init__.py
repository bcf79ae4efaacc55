"""Training: what a run starts from, its loop, and how it goes on without ranks that are lost.

Here: `Trainer`, what a run starts from (`setup`), the session of arranged ranks, epochs, recovery,
and commands that need a model: planning a run, generated text, notebooks.
Not here: files and reports (`io`); which strategy is used, which is known to `parallel` alone.
"""
