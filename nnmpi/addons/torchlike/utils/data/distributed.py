"""PyTorch's `utils.data.distributed`."""

from nnmpi.addons.torchlike.distributed.sampler import DistributedSampler as DistributedSampler
