"""Recovery from the loss of ranks: backups of state, undoing a step, and layouts for fewer
ranks.
"""
