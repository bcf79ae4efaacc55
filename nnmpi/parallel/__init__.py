"""Training on many ranks: where the engine meets the communicator."""
