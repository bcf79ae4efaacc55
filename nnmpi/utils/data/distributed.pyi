from nnmpi.addons.torchlike.distributed.sampler import DistributedSampler as DistributedSampler
