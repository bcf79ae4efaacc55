"""Layers, losses and models, with PyTorch's names and shapes; memory of parameters (`Store`), a
rank's part of a tensor (`Place`), the structure of a model (`Graph`).

Optimizers are in `optim`, and the execution of a model on several ranks is in `parallel`.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from nnmpi import addons as _addons
from nnmpi.addons import finder as _finder
from nnmpi.nn import utils
from nnmpi.nn.containers import ModuleDict, ModuleList, ParameterList
from nnmpi.nn.layers.activations import (
    ELU,
    GELU,
    Identity,
    LeakyReLU,
    LogSoftmax,
    PReLU,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from nnmpi.nn.layers.basic import ChannelsFirst, Dropout, Dropout2d, Embedding, Flatten, Linear
from nnmpi.nn.layers.conv import Conv1d, Conv2d, ConvTranspose2d
from nnmpi.nn.layers.norm import (
    BatchNorm1d,
    BatchNorm2d,
    GroupNorm,
    InstanceNorm2d,
    LayerNorm,
    RMSNorm,
)
from nnmpi.nn.layers.pooling import (
    AdaptiveAvgPool2d,
    AvgPool1d,
    AvgPool2d,
    MaxPool1d,
    MaxPool2d,
    Upsample,
)
from nnmpi.nn.losses import CrossEntropyLoss, L1Loss, MSELoss, NLLLoss
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.sequential import Sequential

__all__ = [
    "ELU", "GELU", "AdaptiveAvgPool2d", "AvgPool1d", "AvgPool2d", "BatchNorm1d", "BatchNorm2d",
    "ChannelsFirst", "Conv1d", "Conv2d", "ConvTranspose2d", "CrossEntropyLoss",
    "Dropout", "Dropout2d", "Embedding", "Flatten", "GroupNorm", "Identity", "InstanceNorm2d",
    "L1Loss", "LayerNorm", "LeakyReLU", "Linear", "LogSoftmax", "MSELoss", "MaxPool1d", "MaxPool2d",
    "Module", "ModuleDict", "ModuleList", "NLLLoss", "PReLU", "Parameter", "ParameterList",
    "RMSNorm", "ReLU", "Sequential", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh", "Upsample",
    "utils",
]  # fmt: skip

__path__ += [_finder.ENTRY]

_ON_USE = _addons.names_of("nnmpi.nn")
"""Where the names are that are loaded when they are used first."""

_MODULES = ("functional", "init")
"""The modules of add-ons that `from nnmpi.nn import *` gives too, as in PyTorch."""

__all__ += [name for name, where in _ON_USE.items() if ":" in where or name in _MODULES]

if _TYPE_CHECKING:
    from nnmpi.addons.language.models.gpt import GPT as GPT
    from nnmpi.addons.language.models.llama import Llama as Llama
    from nnmpi.addons.layer_ways.branches import Branches as Branches
    from nnmpi.addons.layer_ways.experts import MixtureOfExperts as MixtureOfExperts
    from nnmpi.addons.recurrent.cells import GRUCell as GRUCell
    from nnmpi.addons.recurrent.cells import LSTMCell as LSTMCell
    from nnmpi.addons.recurrent.cells import RNNCell as RNNCell
    from nnmpi.addons.recurrent.layers import GRU as GRU
    from nnmpi.addons.recurrent.layers import LSTM as LSTM
    from nnmpi.addons.recurrent.layers import RNN as RNN
    from nnmpi.addons.torchlike import functional as functional
    from nnmpi.addons.torchlike import init as init
    from nnmpi.addons.torchlike.layers.distances import CosineEmbeddingLoss as CosineEmbeddingLoss
    from nnmpi.addons.torchlike.layers.distances import CosineSimilarity as CosineSimilarity
    from nnmpi.addons.torchlike.layers.distances import MarginRankingLoss as MarginRankingLoss
    from nnmpi.addons.torchlike.layers.distances import PairwiseDistance as PairwiseDistance
    from nnmpi.addons.torchlike.layers.distances import TripletMarginLoss as TripletMarginLoss
    from nnmpi.addons.torchlike.layers.embedding_bag import EmbeddingBag as EmbeddingBag
    from nnmpi.addons.torchlike.layers.more_activations import SELU as SELU
    from nnmpi.addons.torchlike.layers.more_activations import Hardsigmoid as Hardsigmoid
    from nnmpi.addons.torchlike.layers.more_activations import Hardswish as Hardswish
    from nnmpi.addons.torchlike.layers.more_activations import Hardtanh as Hardtanh
    from nnmpi.addons.torchlike.layers.more_activations import LogSigmoid as LogSigmoid
    from nnmpi.addons.torchlike.layers.more_activations import Mish as Mish
    from nnmpi.addons.torchlike.layers.more_activations import ReLU6 as ReLU6
    from nnmpi.addons.torchlike.layers.more_activations import Softsign as Softsign
    from nnmpi.addons.torchlike.layers.padding import CircularPad1d as CircularPad1d
    from nnmpi.addons.torchlike.layers.padding import CircularPad2d as CircularPad2d
    from nnmpi.addons.torchlike.layers.padding import ConstantPad1d as ConstantPad1d
    from nnmpi.addons.torchlike.layers.padding import ConstantPad2d as ConstantPad2d
    from nnmpi.addons.torchlike.layers.padding import PixelShuffle as PixelShuffle
    from nnmpi.addons.torchlike.layers.padding import PixelUnshuffle as PixelUnshuffle
    from nnmpi.addons.torchlike.layers.padding import ReflectionPad1d as ReflectionPad1d
    from nnmpi.addons.torchlike.layers.padding import ReflectionPad2d as ReflectionPad2d
    from nnmpi.addons.torchlike.layers.padding import ReplicationPad1d as ReplicationPad1d
    from nnmpi.addons.torchlike.layers.padding import ReplicationPad2d as ReplicationPad2d
    from nnmpi.addons.torchlike.layers.padding import Unflatten as Unflatten
    from nnmpi.addons.torchlike.layers.padding import ZeroPad1d as ZeroPad1d
    from nnmpi.addons.torchlike.layers.padding import ZeroPad2d as ZeroPad2d
    from nnmpi.addons.torchlike.losses import BCELoss as BCELoss
    from nnmpi.addons.torchlike.losses import BCEWithLogitsLoss as BCEWithLogitsLoss
    from nnmpi.addons.torchlike.losses import HuberLoss as HuberLoss
    from nnmpi.addons.torchlike.losses import KLDivLoss as KLDivLoss
    from nnmpi.addons.torchlike.losses import SmoothL1Loss as SmoothL1Loss
    from nnmpi.addons.transformer.attention import SelfAttention as SelfAttention
    from nnmpi.addons.transformer.encoder import TransformerEncoder as TransformerEncoder
    from nnmpi.addons.transformer.encoder import TransformerEncoderLayer as TransformerEncoderLayer
    from nnmpi.addons.transformer.gates import SwiGLU as SwiGLU
    from nnmpi.addons.transformer.multihead import MultiheadAttention as MultiheadAttention
    from nnmpi.addons.transformer.sequences import PositionalEmbedding as PositionalEmbedding
    from nnmpi.addons.transformer.sequences import (
        RotaryPositionalEmbeddings as RotaryPositionalEmbeddings,
    )
else:  # type checkers know from the names above which there are

    def __dir__() -> list[str]:
        return sorted({*globals(), *_ON_USE})

    def __getattr__(name: str) -> _Any:
        if name in _ON_USE:
            return _addons.loaded(_ON_USE[name])
        raise _finder.missing(_finder.no_name("nnmpi.nn", name, "layers"))
