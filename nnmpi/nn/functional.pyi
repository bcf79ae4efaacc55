from nnmpi.addons.torchlike.functional import *
