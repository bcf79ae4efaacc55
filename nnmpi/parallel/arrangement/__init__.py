"""Computes, without communication, which part of the model each rank has, and what it does."""
