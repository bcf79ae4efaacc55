"""Finding out what went wrong between ranks."""
