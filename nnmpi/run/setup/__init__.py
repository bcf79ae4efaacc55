"""Setup of a run: data, model, optimizer and loss, cut and checked."""
