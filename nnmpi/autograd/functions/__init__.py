"""Functions and methods of tensors under PyTorch's names that a training run does not need.

Each module is loaded when one of its names is used first: `nnmpi.sort(t)`, `t.sort()`,
`nnmpi.autograd.grad`. The add-on `tensor-functions` in `addons.py` says where the names are.
"""
