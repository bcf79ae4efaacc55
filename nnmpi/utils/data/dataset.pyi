from nnmpi.addons.torchlike.utils.data.dataset import *
