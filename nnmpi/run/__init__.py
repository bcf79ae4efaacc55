"""A run: its parts, training, files and reports.

Here: `Trainer`, what a run starts from (`setup`), epochs, checkpoints and other files, recovery
from lost ranks, and tools that show a run: reports, pages, traces, generated text.
Not here: which strategy is used; that is known to `parallel` alone.
"""
