from nnmpi.addons.torchlike.init import *
