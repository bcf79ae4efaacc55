from nnmpi.addons.torchlike.cuda import *
