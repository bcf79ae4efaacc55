"""The arrangement of ranks: which part of the model each rank has, and what it does. It is computed
before anything is built, without communication."""
