"""Writes to views that gradients flow through, gradients that programs keep, and parameters in the
memory of tensors: habits of programs for PyTorch. Tensors ask the table `memory` for these
functions after a test of one attribute, such as `Storage.sharing`, which a plain run never sets."""
