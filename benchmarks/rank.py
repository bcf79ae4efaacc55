"""What the jobs of benchmarks start: python benchmarks/rank.py MODULE ARGUMENT ..."""

import importlib
import sys

if __name__ == "__main__":
    importlib.import_module(sys.argv[1]).main(*sys.argv[2:])
