from nnmpi.addons.torchlike.distributed import *
