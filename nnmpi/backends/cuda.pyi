from nnmpi.addons.torchlike.backends.cuda import *
