"""The loop that ranks run from the loss of one of them to the session that continues training."""
