from nnmpi.addons.torchlike.optim.lr_scheduler import *
