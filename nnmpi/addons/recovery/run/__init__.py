"""The loop that ranks run between the loss of one of them and the session that continues training."""
