from nnmpi.addons.torchlike.distributions import *
