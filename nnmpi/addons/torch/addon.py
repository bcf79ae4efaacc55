"""Trains models of PyTorch with nnmpi's collectives."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(modules=("nnmpi.torch",), uses=("distributed",))
