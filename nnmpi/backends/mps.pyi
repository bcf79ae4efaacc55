from nnmpi.addons.torchlike.backends.mps import *
