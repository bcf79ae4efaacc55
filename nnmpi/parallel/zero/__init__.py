"""ZeRO: optimizer state, gradients and parameters in parts on the ranks of data parallelism."""
