"""Input and output: the files that a run reads and writes, and its reports. Elsewhere: when
something is written (`run`), files of samples (`data`), and what add-ons write."""
