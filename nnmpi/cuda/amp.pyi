from nnmpi.addons.torchlike.cuda.amp import *
