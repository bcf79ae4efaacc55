from nnmpi.addons.torchlike.parallel import *
