"""Layers, losses and models, under the names and shapes of PyTorch."""

from nnmpi.nn.activations import GELU, LogSoftmax, ReLU, Sigmoid, Tanh
from nnmpi.nn.layers import AvgPool2d, Conv2d, Dropout, Embedding, Flatten, Linear, MaxPool2d
from nnmpi.nn.losses import CrossEntropyLoss, MSELoss, NLLLoss
from nnmpi.nn.module import Module
from nnmpi.nn.norm import BatchNorm1d, BatchNorm2d, LayerNorm
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.sequential import ModuleList, Sequential

__all__ = [
    "GELU",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "LayerNorm",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool2d",
    "Module",
    "ModuleList",
    "NLLLoss",
    "Parameter",
    "ReLU",
    "Sequential",
    "Sigmoid",
    "Tanh",
]
