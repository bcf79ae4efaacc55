from nnmpi.addons.torchlike.utils.data.distributed import *
