"""Layers, losses and models, under the names and shapes of PyTorch."""

import types as _types
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import NoReturn as _NoReturn

from nnmpi.autograd import replacements as _replacements
from nnmpi.nn import functional as functional
from nnmpi.nn import init as init
from nnmpi.nn import utils as utils
from nnmpi.nn.branches import Branches as Branches
from nnmpi.nn.containers import ModuleDict as ModuleDict
from nnmpi.nn.containers import ModuleList as ModuleList
from nnmpi.nn.containers import ParameterList as ParameterList
from nnmpi.nn.element_losses import BCELoss as BCELoss
from nnmpi.nn.element_losses import BCEWithLogitsLoss as BCEWithLogitsLoss
from nnmpi.nn.element_losses import HuberLoss as HuberLoss
from nnmpi.nn.element_losses import KLDivLoss as KLDivLoss
from nnmpi.nn.element_losses import L1Loss as L1Loss
from nnmpi.nn.element_losses import MSELoss as MSELoss
from nnmpi.nn.element_losses import SmoothL1Loss as SmoothL1Loss
from nnmpi.nn.element_losses import TripletMarginLoss as TripletMarginLoss
from nnmpi.nn.gpt import GPT as GPT
from nnmpi.nn.layers.activations import ELU as ELU
from nnmpi.nn.layers.activations import GELU as GELU
from nnmpi.nn.layers.activations import Identity as Identity
from nnmpi.nn.layers.activations import LeakyReLU as LeakyReLU
from nnmpi.nn.layers.activations import LogSoftmax as LogSoftmax
from nnmpi.nn.layers.activations import PReLU as PReLU
from nnmpi.nn.layers.activations import ReLU as ReLU
from nnmpi.nn.layers.activations import Sigmoid as Sigmoid
from nnmpi.nn.layers.activations import SiLU as SiLU
from nnmpi.nn.layers.activations import Softmax as Softmax
from nnmpi.nn.layers.activations import Softplus as Softplus
from nnmpi.nn.layers.activations import Tanh as Tanh
from nnmpi.nn.layers.attention import SelfAttention as SelfAttention
from nnmpi.nn.layers.basic import Dropout as Dropout
from nnmpi.nn.layers.basic import Dropout2d as Dropout2d
from nnmpi.nn.layers.basic import Embedding as Embedding
from nnmpi.nn.layers.basic import Flatten as Flatten
from nnmpi.nn.layers.basic import Linear as Linear
from nnmpi.nn.layers.conv import Conv1d as Conv1d
from nnmpi.nn.layers.conv import Conv2d as Conv2d
from nnmpi.nn.layers.conv import ConvTranspose2d as ConvTranspose2d
from nnmpi.nn.layers.experts import MixtureOfExperts as MixtureOfExperts
from nnmpi.nn.layers.multihead import MultiheadAttention as MultiheadAttention
from nnmpi.nn.layers.norm import BatchNorm1d as BatchNorm1d
from nnmpi.nn.layers.norm import BatchNorm2d as BatchNorm2d
from nnmpi.nn.layers.norm import GroupNorm as GroupNorm
from nnmpi.nn.layers.norm import InstanceNorm2d as InstanceNorm2d
from nnmpi.nn.layers.norm import LayerNorm as LayerNorm
from nnmpi.nn.layers.norm import RMSNorm as RMSNorm
from nnmpi.nn.layers.pooling import AdaptiveAvgPool2d as AdaptiveAvgPool2d
from nnmpi.nn.layers.pooling import AvgPool1d as AvgPool1d
from nnmpi.nn.layers.pooling import AvgPool2d as AvgPool2d
from nnmpi.nn.layers.pooling import MaxPool1d as MaxPool1d
from nnmpi.nn.layers.pooling import MaxPool2d as MaxPool2d
from nnmpi.nn.layers.pooling import Upsample as Upsample
from nnmpi.nn.layers.recurrent import GRU as GRU
from nnmpi.nn.layers.recurrent import LSTM as LSTM
from nnmpi.nn.layers.recurrent import RNN as RNN
from nnmpi.nn.layers.sequences import ChannelsFirst as ChannelsFirst
from nnmpi.nn.layers.sequences import PositionalEmbedding as PositionalEmbedding
from nnmpi.nn.layers.sequences import (
    RotaryPositionalEmbeddings as RotaryPositionalEmbeddings,
)
from nnmpi.nn.layers.transformer import TransformerEncoder as TransformerEncoder
from nnmpi.nn.layers.transformer import TransformerEncoderLayer as TransformerEncoderLayer
from nnmpi.nn.losses import CrossEntropyLoss as CrossEntropyLoss
from nnmpi.nn.losses import NLLLoss as NLLLoss
from nnmpi.nn.module import Module as Module
from nnmpi.nn.parameter import Parameter as Parameter
from nnmpi.nn.sequential import Sequential as Sequential

__all__ = [
    name
    for name, value in globals().items()
    if not name.startswith("_")
    and (not isinstance(value, _types.ModuleType) or name in ("functional", "init", "utils"))
]
"""The names above: an import binds submodules too, as `module`, which are not of the library."""

if not _TYPE_CHECKING:  # so that type checkers still know which names there are

    def __getattr__(name: str) -> _NoReturn:
        raise AttributeError(_replacements.no_name("nnmpi.nn", name, "layers"))
