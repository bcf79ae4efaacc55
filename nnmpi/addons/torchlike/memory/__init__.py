"""What PyTorch's programs do with memory, and a plain run does not: write to views that gradients
flow through, keep gradients, and let parameters share the memory of tensors.

Tensors and parameters ask the table `memory` for these functions (`addon.py`), after a test of one
attribute, such as `storage.sharing`, that such a program has set. So a program that does none of
this loads no module of this folder.
"""
