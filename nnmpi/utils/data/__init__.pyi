from nnmpi.addons.torchlike.utils.data import *
