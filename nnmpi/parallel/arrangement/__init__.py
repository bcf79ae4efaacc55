"""Computes, without communication, the arrangement of a job: which part of the model each rank has,
and what it does in a step."""
