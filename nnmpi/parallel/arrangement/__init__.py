"""The parts and the work of each rank, decided before anything is built: values, and formulas."""
