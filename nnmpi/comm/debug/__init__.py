"""Diagnostics: which rank did what, when ranks fail or hang."""
