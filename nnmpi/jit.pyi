from nnmpi.addons.torchlike.jit import *
