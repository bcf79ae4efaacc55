"""The subcommands of `python -m nnmpi.simulate`: their options and output."""
