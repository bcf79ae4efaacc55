"""Files of a run: models, which are replaced atomically and checked when they are read, and
outputs.
"""
