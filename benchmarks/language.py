"""Training steps of models of sequences on one core: python benchmarks/language.py [--json FILE]

The cases are those of lib.models.LANGUAGE. Subjects, rounds and ratios are those of
benchmarks/training.py, whose columns are explained there; JAX has no LSTM of its own.
"""

import training
from lib.models import LANGUAGE

GOALS = {"lstm": 0.8, "lstm-text": 0.8}
"""Our goals for nnmpi's time over that of the fastest other library."""

SUBJECTS = "nnmpi", "T", "T*", "T+", "compile"

if __name__ == "__main__":
    training.main(training.Benchmark("language", LANGUAGE, GOALS, SUBJECTS), __doc__)
