from nnmpi.addons.torchlike.optim.swa_utils import *
