from nnmpi.addons.torchlike.amp import *
