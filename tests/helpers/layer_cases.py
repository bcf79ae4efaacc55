"""Layers, the shape of one sample, and that of its result. Those that cannot train on an empty
batch are in evaluation."""

from collections.abc import Callable

from nnmpi import nn
from nnmpi.nn.models import MODELS, mlp


def conv(algorithm: str, *options: int) -> Callable[..., nn.Sequential]:
    """A convolution of 8 channels, in which Winograd pays, and what follows it."""
    return lambda *rest: nn.Sequential(nn.Conv2d(8, 4, *options, algorithm=algorithm), *rest)


ROWS, IMAGES, SEQUENCE = (6,), (8, 9, 8), (5, 6)
auto, gemm, four = conv("auto", 3, 1, 1), conv("im2col", 3, 2), conv("winograd4", 3)
Shape = tuple[int, ...]
LAYERS: dict[str, tuple[Callable[[], nn.Module], Shape, Shape]] = {
    "Linear": (lambda: nn.Linear(6, 3), ROWS, (3,)),
    "Linear of sequences": (lambda: nn.Linear(6, 3, bias=False), SEQUENCE, (5, 3)),
    "Linear ReLU": (lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU()), ROWS, (3,)),
    "Winograd": (auto, IMAGES, (4, 9, 8)),
    "Winograd ReLU": (lambda: auto(nn.ReLU()), IMAGES, (4, 9, 8)),
    "Winograd pool": (lambda: auto(nn.MaxPool2d(2)), IMAGES, (4, 4, 4)),
    "Winograd ReLU pool": (lambda: auto(nn.ReLU(), nn.MaxPool2d(2)), IMAGES, (4, 4, 4)),
    "Winograd4": (four, IMAGES, (4, 7, 6)),
    "Winograd4 ReLU pool": (lambda: four(nn.ReLU(), nn.MaxPool2d(2)), IMAGES, (4, 3, 3)),
    "im2col": (gemm, IMAGES, (4, 4, 3)),
    "im2col ReLU": (lambda: gemm(nn.ReLU()), IMAGES, (4, 4, 3)),
    "im2col pool": (lambda: gemm(nn.MaxPool2d(2)), IMAGES, (4, 2, 1)),
    "im2col ReLU pool": (lambda: gemm(nn.ReLU(), nn.MaxPool2d(2)), IMAGES, (4, 2, 1)),
    "im2col of few channels": (lambda: nn.Conv2d(2, 4, 3, bias=False), (2, 5, 6), (4, 3, 4)),
    "Conv2d wide pool": (lambda: gemm(nn.ReLU(), nn.MaxPool2d(3, 1, 1)), IMAGES, (4, 4, 3)),
    "Conv2d, groups": (lambda: nn.Conv2d(8, 4, 3, groups=2), IMAGES, (4, 7, 6)),
    "Conv2d, depthwise": (lambda: nn.Conv2d(8, 8, 3, padding="same", groups=8), IMAGES, IMAGES),
    "Conv1d": (lambda: nn.Conv1d(5, 4, 3), SEQUENCE, (4, 4)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(8, 4, 3, 2), IMAGES, (4, 19, 17)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((1, 2)), IMAGES, (8, 1, 2)),
    "AvgPool2d, unpadded": (
        lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        *(IMAGES, (8, 5, 4)),
    ),
    "MaxPool1d": (lambda: nn.MaxPool1d(2), SEQUENCE, (5, 3)),
    "AvgPool1d": (lambda: nn.AvgPool1d(2, 1), SEQUENCE, (5, 5)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), IMAGES, (8, 4, 4)),
    "MaxPool2d, overlapping": (lambda: nn.MaxPool2d(3, 2, 1), IMAGES, (8, 5, 4)),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 2, 1), IMAGES, (8, 5, 4)),
    "BatchNorm1d, evaluation": (lambda: nn.BatchNorm1d(6).eval(), ROWS, ROWS),
    "BatchNorm2d, evaluation": (lambda: nn.BatchNorm2d(8).eval(), IMAGES, IMAGES),
    "BatchNorm1d of sequences, evaluation": (lambda: nn.BatchNorm1d(5).eval(), SEQUENCE, SEQUENCE),
    "GroupNorm": (lambda: nn.GroupNorm(2, 8), IMAGES, IMAGES),
    "LayerNorm": (lambda: nn.LayerNorm(6), ROWS, ROWS),
    "RMSNorm": (lambda: nn.RMSNorm(6), ROWS, ROWS),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(6, 1, 8, 0.5, batch_first=True),
        *(SEQUENCE, SEQUENCE),
    ),
    "rotary positions": (lambda: nn.SelfAttention(1, rotary=1e4), (5, 12), (5, 4)),
    "LayerNorm of sequences": (lambda: nn.LayerNorm(SEQUENCE), SEQUENCE, SEQUENCE),
    "Dropout": (lambda: nn.Dropout(0.5), ROWS, ROWS),
    "Dropout of images": (lambda: nn.Dropout(0.5), IMAGES, IMAGES),
    "Flatten": (nn.Flatten, IMAGES, (576,)),
    "ReLU": (nn.ReLU, IMAGES, IMAGES),
    "GELU": (nn.GELU, ROWS, ROWS),
    "LeakyReLU": (nn.LeakyReLU, IMAGES, IMAGES),
    "SiLU": (nn.SiLU, IMAGES, IMAGES),
    "Identity": (nn.Identity, ROWS, ROWS),
    "Softmax": (nn.Softmax, ROWS, ROWS),
    "Sigmoid": (nn.Sigmoid, ROWS, ROWS),
    "Tanh": (nn.Tanh, ROWS, ROWS),
    "LogSoftmax": (nn.LogSoftmax, ROWS, ROWS),
    "mlp": (lambda: mlp(8 * 9 * 8, 5, 3), IMAGES, (3,)),
    "mnist-cnn": (MODELS["mnist-cnn"], (1, 28, 28), (10,)),
    "cifar-cnn": (MODELS["cifar-cnn"], (3, 32, 32), (10,)),
    "digits-cnn, evaluation": (lambda: MODELS["digits-cnn"]().eval(), (1, 8, 8), (10,)),
    "Linear, no features": (lambda: nn.Linear(0, 5), (4, 0), (4, 5)),
    "Conv1d, same": (lambda: nn.Conv1d(5, 4, 3, padding="same"), SEQUENCE, (4, 6)),
    "ConvTranspose2d, padded": (lambda: nn.ConvTranspose2d(8, 4, 4, 2, 1), IMAGES, (4, 18, 16)),
    "AvgPool1d, ceiled": (lambda: nn.AvgPool1d((3,), ceil_mode=True), (4, 8), (4, 3)),
    "RotaryPositionalEmbeddings": (lambda: nn.RotaryPositionalEmbeddings(4), (3, 5, 4), (3, 5, 4)),
    "Flatten, from 2": (lambda: nn.Flatten(2), IMAGES, (8, 72)),
}
