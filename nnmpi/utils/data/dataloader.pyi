from nnmpi.addons.torchlike.utils.data.dataloader import *
