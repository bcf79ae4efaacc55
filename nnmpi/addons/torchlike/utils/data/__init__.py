"""PyTorch's `utils.data`: data sets of single samples, and a loader that makes batches of them.

Random orders come from `nnmpi.randperm`, so they depend on the seed of `nnmpi.manual_seed` and are
the same on all ranks. A Trainer, which divides batches among ranks, takes arrays instead.
"""

from typing import TYPE_CHECKING, Any

from nnmpi import addons
from nnmpi.addons import finder
from nnmpi.addons.torchlike.utils.data.dataloader import DataLoader, default_collate
from nnmpi.addons.torchlike.utils.data.dataset import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)
from nnmpi.addons.torchlike.utils.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BatchSampler", "ConcatDataset", "DataLoader", "Dataset", "IterableDataset", "RandomSampler",
    "Sampler", "SequentialSampler", "Subset", "SubsetRandomSampler", "TensorDataset",
    "WeightedRandomSampler", "default_collate", "random_split",
]  # fmt: skip

if not TYPE_CHECKING:  # type checkers still report names that do not exist

    def __getattr__(name: str) -> Any:
        if (where := addons.names_of("nnmpi.utils.data").get(name)) is not None:
            return addons.loaded(where)
        raise finder.missing(finder.no_name("nnmpi.utils.data", name, "data"))
