"""What a run starts from: data, model, optimizer and loss, cut and checked."""
