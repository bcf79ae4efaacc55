"""Finding out which rank did what, where ranks fail or hang."""
