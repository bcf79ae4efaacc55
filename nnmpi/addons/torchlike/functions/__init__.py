"""Functions and methods of tensors under PyTorch's names that a training run does not need. A
module is loaded when one of its names, listed in `torchlike/addon.py`, is first used."""
