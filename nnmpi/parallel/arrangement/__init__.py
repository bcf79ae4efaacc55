"""The arrangement of ranks: which rank has and does what, decided before anything is built, as
values and formulas."""
