"""Sets up a run: data, model, loss and optimizer, checked and cut among ranks."""
