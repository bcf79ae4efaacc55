from nnmpi.addons.torchlike.utils import *
