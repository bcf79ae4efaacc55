"""Makes and checks data, model, loss and optimizer, and divides the model."""
