"""What each rank has and does, decided before anything is built: values, and formulas of them."""
