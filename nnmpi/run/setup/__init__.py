"""Sets up a run: makes and checks data, model, loss and optimizer, and cuts the model among
ranks."""
