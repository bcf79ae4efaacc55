"""Layers refuse what does not fit, each in one line: the words of it, and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused

import nnmpi
import nnmpi.nn.functional as F
from nnmpi import nn
from nnmpi.nn.models import mlp


def some(*shape: int, dtype: str = "float32") -> nnmpi.Tensor:
    return nnmpi.tensor(np.random.default_rng(0).standard_normal(shape).astype(dtype))


def attend(*shape: int, **masks: Any) -> Any:
    return nn.MultiheadAttention(6, 2)(*[some(*shape)] * 3, **masks)


def attention(*shapes: tuple[int, ...], **options: Any) -> Any:
    return F.scaled_dot_product_attention(*(some(*shape) for shape in shapes), **options)


def bag(*args: Any) -> Any:
    return nn.EmbeddingBag(3, 2)(*args)


SCORES, PARTS = some(6, 4), np.full((6, 4), 0.5, "float32")
IMAGES, PIXELS = some(2, 4, 2, 3), np.zeros((2, 2), int)
WORDS = nnmpi.tensor([1, 2, 0])
EXPERTS, UNEVEN = (
    {"width": 4, "hidden": 6, "num_experts": 5},
    {"a": nn.Linear(4, 3), "b": nn.Tanh()},
)
INTEGERS = np.ones((1, 1, 4, 4), int)

REFUSED: dict[str, Callable[[], Any]] = {
    # ---- dense layers, and layers that all models have
    "input of shape (2, 4) ... (5, 3) ... the last axis must be 3": lambda: nn.Linear(3, 5)(
        some(2, 4)
    ),
    "linear: float64 input ... float32": lambda: nn.Linear(3, 5)(some(2, 3, dtype="float64")),
    "float32 input for int8 weights": lambda: F.linear(some(1, 2), np.ones((3, 2), np.int8)),
    "out_features=-1 ... at least 0": lambda: nn.Linear(3, -1),
    "padding_idx=4 ... -4 to 3": lambda: nn.Embedding(4, 3, 4),
    "padding_idx=0.5 ... integer": lambda: nn.Embedding(4, 3, 0.5),
    "from 0 to 4 ... 0 to 3": lambda: nn.Embedding(4, 3)([0, 4]),
    "from -1 ... 0 to 3": lambda: nn.Embedding(4, 3)(nnmpi.tensor([-1])),
    "integers ... float64": lambda: nn.Embedding(4, 3)([0.5]),
    "integers ... bool": lambda: nn.Embedding(4, 3)([True]),
    "Embedding: max_norm=1.0 ... F.normalize": lambda: nn.Embedding(3, 2, max_norm=1.0),
    "scale_grad_by_freq=True": lambda: nn.EmbeddingBag(3, 2, scale_grad_by_freq=True),
    "'min' ... sum, mean, max": lambda: nn.EmbeddingBag(3, 2, mode="min"),
    "(3,) without offsets": lambda: bag(WORDS),
    "(1, 3) with offsets": lambda: bag(WORDS.view(1, 3), nnmpi.tensor([0])),
    "[1, 2] ... begin with 0": lambda: bag(WORDS, nnmpi.tensor([1, 2])),
    "[0, 2, 1] for 3 integers ... rise": lambda: bag(WORDS, nnmpi.tensor([0, 2, 1])),
    "[0, 4] for 3 integers": lambda: bag(WORDS, nnmpi.tensor([0, 4])),
    "mode='sum' ... 'mean'": lambda: bag(WORDS, nnmpi.tensor([0]), WORDS),
    "from 3 to 3 ... 3 rows": lambda: bag(nnmpi.tensor([[3]])),
    "p=1.0": lambda: nn.Dropout(1.0),
    "Dropout2d ... (2, 3)": lambda: nn.Dropout2d()(some(2, 3)),
    "axis 1 ... 1 axes": lambda: nn.Flatten()(some(3)),
    "start_dim=2 ... end_dim=1": lambda: nn.Flatten(2, 1)(some(2, 3, 4)),
    "sizes (3, 2) ... their product must be 8": lambda: nn.Unflatten(1, (3, 2))(some(2, 8)),
    "sizes (-1, -1) ... must be 8": lambda: nn.Unflatten(1, (-1, -1))(some(2, 8)),
    "sizes (-1, 3) ... must be 8": lambda: nn.Unflatten(1, (-1, 3))(some(2, 8)),
    "'erf' ... none, tanh": lambda: nn.GELU("erf"),
    "beta=0": lambda: nn.Softplus(0),
    "weight of 4 ... (2, 3)": lambda: nn.PReLU(4)(some(2, 3)),
    "list ... Sequential(*layers)": lambda: nn.Sequential([nn.ReLU()]),
    "two widths": lambda: mlp(4),
    # ---- norms
    "BatchNorm2d ... (2, 3) ... C = 3": lambda: nn.BatchNorm2d(3)(some(2, 3)),
    "(2, 4) ... C = 3": lambda: nn.BatchNorm1d(3)(some(2, 4)),
    "(2, 4, 3) ... (N, C) or (N, C, L) with C = 3": lambda: nn.BatchNorm1d(3)(some(2, 4, 3)),
    "variance ... more than one": lambda: nn.BatchNorm1d(3)(some(1, 3)),
    "BatchNorm2d ... num_features=-1": lambda: nn.BatchNorm2d(-1),
    "6 channels ... 4 equal groups": lambda: nn.GroupNorm(4, 6),
    "num_groups=0 ... at least 1": lambda: nn.GroupNorm(0, 6),
    "(2, 4) ... C = 6": lambda: nn.GroupNorm(2, 6)(some(2, 4)),
    "layer_norm ... (5,) ... (4, 5)": lambda: nn.LayerNorm((4, 5))(some(5)),
    "LayerNorm ... normalized_shape=-1": lambda: nn.LayerNorm(-1),
    "normalized_shape=-3 ... at least 0": lambda: nn.LayerNorm((2, -3)),
    "rms_norm ... (5,) ... (4, 5)": lambda: nn.RMSNorm((4, 5))(some(5)),
    "RMSNorm ... normalized_shape=-1": lambda: nn.RMSNorm(-1),
    "leave it out, or use BatchNorm2d": lambda: nn.InstanceNorm2d(3, track_running_stats=True),
    "more than one pixel": lambda: nn.InstanceNorm2d(3)(nnmpi.zeros(2, 3, 1, 1)),
    # ---- convolutions
    "(2, 4, 5, 5) ... (N, 3, H, W)": lambda: nn.Conv2d(3, 5, 3)(some(2, 4, 5, 5)),
    "2x9 with padding 0 are too small for a 3x3 kernel": lambda: nn.Conv2d(3, 5, 3)(
        some(2, 3, 2, 9)
    ),
    "kernel_size=(3, 3, 3) ... tuple of 2": lambda: nn.Conv2d(1, 2, (3, 3, 3)),
    "4 input and 2 output ... 4 groups": lambda: nn.Conv2d(4, 2, 3, groups=4),
    "the stride is (1, 2)": lambda: nn.Conv2d(2, 2, 3, (1, 2), "same"),
    "'full' ... same, valid": lambda: nn.Conv1d(2, 2, 3, padding="full"),
    "sequences of length 4 ... kernel of 5": lambda: nn.Conv1d(2, 2, 5)(some(1, 2, 4)),
    "(2, 8, 8) ... (N, 1, H, W) ... x[:, None] adds the axis of channels": lambda: nn.Conv2d(
        1, 2, 3
    )(some(2, 8, 8)),
    "dilation 2x2": lambda: nn.Conv2d(2, 2, 3, dilation=2)(some(1, 2, 4, 6)),
    "conv2d: float64 input for float32 weights ... x.astype('float32')": lambda: nn.Conv2d(1, 1, 1)(
        some(1, 1, 2, 2, dtype="float64")
    ),
    "'fft' ... im2col": lambda: nn.Conv2d(2, 2, 3, algorithm="fft"),
    "padding_mode='same' ... circular": lambda: nn.Conv2d(1, 1, 3, padding_mode="same"),
    "one of zeros": lambda: nn.ConvTranspose2d(1, 1, 3, padding_mode="reflect"),
    "output_padding=2 ... stride (2, 2)": lambda: nn.ConvTranspose2d(2, 2, 3, 2, output_padding=2),
    "3x3 ... -1x-1 ... padding 2": lambda: nn.ConvTranspose2d(2, 2, 1, padding=2)(some(1, 2, 3, 3)),
    "(2, 3, 3) ... (N, 2, H, W)": lambda: nn.ConvTranspose2d(2, 2, 1)(some(2, 3, 3)),
    # ---- pools, padding, pixels
    "(2, 3, 2, 9) for a 3x3 window": lambda: nn.MaxPool2d(3)(some(2, 3, 2, 9)),
    "padding 2 is more than half the window 2": lambda: nn.AvgPool2d(2, 2, 2)(some(2, 3, 8, 8)),
    "MaxPool2d ... stride=0 ... at least 1": lambda: nn.MaxPool2d(2, 0),
    "avg_pool2d takes ... int64 ... x.astype('float32')": lambda: nn.AvgPool2d(2)(INTEGERS),
    "adaptive_avg_pool2d takes ... int64 ... x.astype('float32')": lambda: nn.AdaptiveAvgPool2d(2)(
        INTEGERS
    ),
    "must be (N, C, L)": lambda: nn.MaxPool1d(2)(some(1, 2, 4, 6)),
    "sequences of 4 are too small": lambda: nn.AvgPool1d(5)(some(1, 2, 4)),
    "avg_pool1d:  ... sequences of 0 are too small": lambda: nn.AvgPool1d(
        2, 2, 1, count_include_pad=False
    )(some(1, 2, 0)),
    "max_pool2d:  ... images of 4x0 are too small": lambda: nn.MaxPool2d(2, 2, 1)(some(1, 2, 4, 0)),
    "MaxPool1d: kernel_size=(2, 2) must be an integer, at least 1": lambda: nn.MaxPool1d((2, 2)),
    "output_size ... at least 1": lambda: nn.AdaptiveAvgPool2d((2, 0)),
    "size=2.5 must be an integer or a tuple of 2": lambda: nn.Upsample(2.5),
    "size=None, scale_factor=None: give one of the two": nn.Upsample,
    "size=2, scale_factor=2: give one of the two": lambda: nn.Upsample(2, 2),
    "scale_factor=() ... a number above 0": lambda: nn.Upsample(scale_factor=()),
    "scale_factor=nan ... a number above 0": lambda: nn.Upsample(scale_factor=float("nan")),
    "scale_factor=(0, 1) ... a number above 0": lambda: nn.Upsample(scale_factor=(0, 1)),
    "'area' ... bilinear": lambda: nn.Upsample(2, mode="area"),
    "upsample2d ... (2, 3)": lambda: nn.Upsample(2)(some(2, 3)),
    "ReflectionPad2d: padding=(1, 2) ... (left, right, top, bottom)": lambda: nn.ReflectionPad2d(
        (1, 2)
    ),
    "ZeroPad1d: input of shape (2, 4, 2, 3) ... (N, C, L) or (C, L)": lambda: nn.ZeroPad1d(1)(
        IMAGES
    ),
    "PixelShuffle: input of shape (2, 4, 2, 3) ... a multiple of 9": lambda: nn.PixelShuffle(3)(
        IMAGES
    ),
    "PixelUnshuffle: input of shape (2, 4, 2, 3) ... multiples of 4": lambda: nn.PixelUnshuffle(4)(
        IMAGES
    ),
    # ---- losses
    "reduction 'max' ... mean, sum, none": lambda: nn.MSELoss(reduction="max"),
    "(2, 3) ... (2,)": lambda: nn.MSELoss()(some(2, 3), [1.0, 2.0]),
    "CrossEntropyLoss ... from 0 to 3 ... 0 to 2": lambda: nn.CrossEntropyLoss()(
        some(2, 3), [0, 3]
    ),
    "NLLLoss ... from -1 ... 0 to 2": lambda: nn.NLLLoss()(some(2, 3), [0, -1]),
    "0 to 4 ... -100": lambda: nn.CrossEntropyLoss()(SCORES, [0, 1, 2, 3, 4, -100]),
    "(2, 3) ... (1,) ... (N, C)": lambda: nn.NLLLoss()(some(2, 3), [0]),
    "(2, 2) ... (N, C, ...)": lambda: nn.CrossEntropyLoss()(IMAGES, PIXELS),
    "float64 ... integers": lambda: nn.CrossEntropyLoss()(some(2, 3), [0.0, 1.0]),
    "NLLLoss ... write -(y * x).sum(1).mean()": lambda: nn.NLLLoss()(some(2, 3), some(2, 3)),
    "'sum' ... CrossEntropyLoss(reduction='sum')": lambda: nn.CrossEntropyLoss("sum"),
    "(6, 4) ... CrossEntropyLoss()(scores, labe": lambda: nn.CrossEntropyLoss(SCORES),
    "NLLLoss: weight ... finite": lambda: nn.NLLLoss([1.0, np.nan]),
    "NLLLoss: weight {1: 2.0} ... numbers": lambda: nn.NLLLoss({1: 2.0}),
    "of 3 ... of 4": lambda: nn.CrossEntropyLoss(np.ones(3))(SCORES, [0] * 6),
    "1.5 ... 0 to 1": lambda: nn.CrossEntropyLoss(label_smoothing=1.5),
    "p=0 ... math.inf": lambda: F.normalize(SCORES, p=0),
    "beta=-1 ... at least 0": lambda: nn.SmoothL1Loss(beta=-1),
    "delta=0": lambda: nn.HuberLoss(delta=0),
    "Sigmoid ... BCEWithLogitsLoss": lambda: nn.BCELoss()(SCORES, PARTS),
    "BCEWithLogitsLoss(reduction='sum')": lambda: nn.BCEWithLogitsLoss("sum"),
    "(3,) ... (6, 4)": lambda: nn.BCELoss(np.ones(3))(PARTS, PARTS),
    "(2, 6, 4) ... (6, 4)": lambda: nn.BCELoss(np.ones((2, 6, 4)))(PARTS, PARTS),
    # ---- recurrent layers, and sequences
    "proj_size=2 ... nn.Linear": lambda: nn.LSTM(3, 4, proj_size=2),
    "RNN ... 'gelu' ... tanh, relu": lambda: nn.RNN(3, 4, nonlinearity="gelu"),
    "GRU: dropout=1.0 ... less than 1": lambda: nn.GRU(3, 4, dropout=1.0),
    "GRU: hidden_size=0 ... at least 1": lambda: nn.GRU(3, 0),
    "num_layers=0 ... at least 1": lambda: nn.GRU(3, 4, 0),
    "(5, 4, 3) ... (T, N, K) ... K = 4": lambda: nn.LSTM(4, 6)(some(5, 4, 3)),
    "(N, T, K)": lambda: nn.LSTM(3, 6, batch_first=True)(some(4, 3)),
    "recurrent layer: float64 input": lambda: nn.LSTM(3, 6)(some(5, 4, 3, dtype="float64")),
    "(2, 4, 6) ... give h of shape (1, 4, 6)": lambda: nn.GRU(3, 6)(some(5, 4, 3), some(2, 4, 6)),
    "give h and c ... (1, 4, 6)": lambda: nn.LSTM(3, 6)(some(5, 4, 3), some(1, 4, 6)),
    "lengths [1, 2] ... 4 integers ... 0 to 5": lambda: nn.GRU(3, 6)(some(5, 4, 3), None, [1, 2]),
    "lengths [1, 2, 6, 1] ... 0 to 5": lambda: nn.GRU(3, 6)(some(5, 4, 3), None, [1, 2, 6, 1]),
    "lengths [1.0, 1.0, 1.0, 1.0] ... 4 integers": lambda: nn.GRU(3, 6)(
        some(5, 4, 3), None, np.ones(4)
    ),
    "LSTMCell ... (2, 4) ... K = 3": lambda: nn.LSTMCell(3, 5)(some(2, 4)),
    "LSTMCell ... [(2, 5)] ... h and c ... (2, 5)": lambda: nn.LSTMCell(3, 5)(
        some(2, 3), (some(2, 5),)
    ),
    "GRUCell ... [(1, 5)] ... give h of shape (2, 5)": lambda: nn.GRUCell(3, 5)(
        some(2, 3), some(1, 5)
    ),
    "GRUCell: hidden_size=0": lambda: nn.GRUCell(3, 0),
    "RNNCell ... 'gelu' ... tanh, relu": lambda: nn.RNNCell(3, 5, nonlinearity="gelu"),
    **{
        f"lengths {lengths} for 4 sequences of 5 positions ... from 1 to 5": (
            lambda lengths=lengths: nn.utils.rnn.pack_padded_sequence(some(5, 4, 2), lengths)
        )
        for lengths in ([5, 4, 3], [6, 1, 1, 1], [0, 1, 1, 1])
    },
    "total_length=2 ... the longest of the sequences, 3": lambda: nn.utils.rnn.pad_packed_sequence(
        nn.utils.rnn.pack_padded_sequence(some(5, 4, 2), [3, 2, 1, 1]), total_length=2
    ),
    "0 sequences": lambda: nn.utils.rnn.pad_sequence([]),
    # ---- attention
    "embed_dim=6 is not a multiple of 4 heads": lambda: nn.MultiheadAttention(6, 4),
    "num_heads=0 must be an integer, at least 1": lambda: nn.MultiheadAttention(6, 0),
    "dropout=1 must be": lambda: nn.MultiheadAttention(6, 2, dropout=1),
    "append them to key and value": lambda: nn.MultiheadAttention(6, 2, add_bias_kv=True),
    "add_zero_attn=True": lambda: nn.MultiheadAttention(6, 2, add_zero_attn=True),
    "query (5, 6), key (5, 6)": lambda: attend(5, 6),
    "batch_first=False they must be (T, N, 6), (S, N, 6)": lambda: attend(5, 3, 4),
    "attn_mask of shape (3": lambda: attend(5, 3, 6, attn_mask=np.ones((3, 5))),
    "key_padding_mask of shape (3, 5) and type int64": lambda: attend(
        5, 3, 6, key_padding_mask=np.ones((3, 5), int)
    ),
    "activation 'swish' must be one of relu, gelu": lambda: nn.TransformerEncoderLayer(
        6, 2, activation="swish"
    ),
    "num_layers=0 ": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2), 0),
    "value (2, 5, 4)": lambda: attention((2, 3, 4), (2, 3, 4), (2, 5, 4)),
    "with enable_gqa": lambda: attention((2, 3, 4), (1, 3, 4), (1, 3, 4)),
    "key (2, 3, 5)": lambda: attention((2, 3, 4), (2, 3, 5), (2, 3, 5)),
    "p=1.5 must be at least 0": lambda: attention(*[(2, 3, 4)] * 3, dropout_p=1.5),
    "not both": lambda: attention(*[(2, 3, 4)] * 3, attn_mask=np.ones((3, 3)), is_causal=True),
    "turn pairs of channels, but a head has 5": lambda: nn.RotaryPositionalEmbeddings(5),
    "base=0 must be a number above 0": lambda: nn.RotaryPositionalEmbeddings(4, base=0),
    "at most 3 positions": lambda: nn.RotaryPositionalEmbeddings(4, 3)(some(2, 5, 1, 4)),
    "it takes (N, T, H, 4)": lambda: nn.RotaryPositionalEmbeddings(4)(some(2, 5, 4)),
    "input_pos of shape (5,) and type float": lambda: nn.RotaryPositionalEmbeddings(4)(
        some(2, 5, 1, 4), input_pos=[0.5] * 5
    ),
    "rotary=-1 must be a number above 0": lambda: nn.SelfAttention(2, rotary=-1),
    "rotary=True must be a number above 0, such": lambda: nn.SelfAttention(2, rotary=True),
    "SelfAttention: rotary positions turn pairs of channels, but a head has 3": lambda: (
        nn.SelfAttention(2, rotary=1e4)(some(1, 5, 2 * 3 * 3))
    ),
    # ---- experts, branches, initial values
    "top_k=6 of 5 experts: give at most 5": lambda: nn.MixtureOfExperts(**EXPERTS, top_k=6),
    "capacity_factor=0 must be above 0, and auxiliary=0.01": lambda: nn.MixtureOfExperts(
        **EXPERTS, capacity_factor=0
    ),
    "activation='tanh' must be one of gelu": lambda: nn.MixtureOfExperts(
        **EXPERTS, activation="tanh"
    ),
    "input of shape (2, 3): it takes (N, 4)": lambda: nn.MixtureOfExperts(**EXPERTS)(some(2, 3)),
    "would not be scaled as the training loss is": lambda: nn.MixtureOfExperts(**EXPERTS).to(
        "float16"
    )(some(2, 4).half()),
    "join='add' must be one of sum, mean, concat, stack": lambda: nn.Branches(UNEVEN, "add"),
    "dim=0 is the axis of the samples": lambda: nn.Branches(UNEVEN, "concat", dim=0),
    "there is no branch": lambda: nn.Branches({}),
    "join sum: the parts have the shapes (5, 3), (5, 4)": lambda: nn.Branches(UNEVEN)(some(5, 4)),
    "inputs a for branches a, b: give one": lambda: nn.Branches(UNEVEN)({"a": some(5, 4)}),
    "trunc_normal_: [5, 6] ... at least 0.01": lambda: nn.init.trunc_normal_(
        nn.Parameter([1.0]), a=5, b=6
    ),
    "xavier_uniform_ ... (3,) ... two axes ... zeros_": lambda: nn.init.xavier_uniform_(
        nn.Linear(2, 3).bias
    ),
    "it needs two axes or more": lambda: nn.init.orthogonal_(nn.Linear(2, 3).bias),
    "kaiming_normal_: mode 'fan' ... fan_in, fan_out": lambda: nn.init.kaiming_normal_(
        nn.Linear(2, 3).weight, mode="fan"
    ),
    "'swish' ... relu": lambda: nn.init.kaiming_normal_(
        nn.Linear(2, 3).weight, nonlinearity="swish"
    ),
}
""" ... stands for any words."""


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(words: str) -> None:
    with refused(words):
        REFUSED[words]()
