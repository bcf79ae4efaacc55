"""What ranks do between the loss of one of them and the session in which training continues."""
