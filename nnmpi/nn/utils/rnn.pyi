from nnmpi.addons.recurrent.rnn import *
