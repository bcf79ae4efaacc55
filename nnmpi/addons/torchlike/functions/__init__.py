"""Functions and methods of tensors under PyTorch's names that a training run does not need.

A module is loaded when one of its names is first used, as in `nnmpi.sort(t)`, `t.sort()` or
`nnmpi.autograd.grad`. `nnmpi/addons/torchlike/addon.py` lists the module of each name.
"""
