"""PyTorch's `utils`: data sets of samples and loaders of batches; functions that run again."""

from nnmpi.utils import checkpoint as checkpoint
from nnmpi.utils import data as data
