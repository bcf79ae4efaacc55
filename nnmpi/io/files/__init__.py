"""Files of a run: models, written whole or not at all and checked when they are read; outputs."""
