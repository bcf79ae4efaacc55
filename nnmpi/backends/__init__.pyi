from nnmpi.addons.torchlike.backends import *
