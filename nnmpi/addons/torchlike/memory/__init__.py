"""Writes to views that gradients flow through, gradients that programs keep, and parameters in the
memory of tensors: habits of programs for PyTorch, which a plain run has not.

Tensors and parameters ask the table `memory` (`addon.py`) for these functions after a test of one
attribute, such as `Storage.sharing`, that such a program has set. No other program loads them.
"""
