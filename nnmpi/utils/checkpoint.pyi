from nnmpi.addons.torchlike.utils.checkpoint import *
