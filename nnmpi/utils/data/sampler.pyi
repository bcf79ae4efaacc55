from nnmpi.addons.torchlike.utils.data.sampler import *
