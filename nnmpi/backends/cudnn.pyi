from nnmpi.addons.torchlike.backends.cudnn import *
