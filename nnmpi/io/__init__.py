"""Input and output: the files that a run reads and writes, and its reports.

Here: files of models (`files`), checkpoints, the log, text and plots (`output`), loggers, the HTML
page of a run (`page`) and traces. Elsewhere: when something is written (`run`), and files of
samples (`data`).
"""
