"""Sets up a run: makes and checks data, model, loss and optimizer, and divides the model among
ranks."""
