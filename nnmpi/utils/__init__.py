"""PyTorch's `utils`: data sets of samples, and loaders of their batches."""

from nnmpi.utils import data as data
