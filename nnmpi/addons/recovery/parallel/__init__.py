"""Backups of state, undoing a step, and layouts for fewer ranks."""
