"""Input and output: the files that a run reads and writes, and its reports.

Here: files of models (`files`), snapshots of a run in memory, the log and texts (`output`).
Elsewhere: when something is written (`run`), files of samples (`data`), and what add-ons write.
"""
