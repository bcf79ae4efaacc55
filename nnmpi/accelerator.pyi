from nnmpi.addons.torchlike.accelerator import *
