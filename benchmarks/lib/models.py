"""The workloads: each model is built from the layers of a library that has PyTorch's names.

W1  mnist-cnn on 1x28x28, batch 64         W3  MLP 4-50-3, batch 64
W2  MLP 784-1024-1024-10, batch 128        W4  CNN 64-128-256 on 3x32x32, batch 64
W5  residual blocks 32-64-128 with BatchNorm on 3x32x32, batch 64
W6  depthwise-separable convolutions 64-128-128-256 with GroupNorm and SiLU on 3x32x32, batch 64
W7  autoencoder 1-32-64-32-1 with ConvTranspose2d on 1x28x28, batch 64

On GPUs, to fill the chip: W1, W2 and W4 at batch 1024, and
R   residual blocks 64-128-256-512 with BatchNorm on 3x32x32, two of each, batch 1024

Of sequences:
lstm       LSTM(256) on 256 numbers a position, T = 64, batch 32
lstm-text  Embedding(65, 256), LSTM(256), Linear(256, 65), T = 64, batch 32
gpt-128    GPT of 4 layers, 4 heads, width 128 on 65 characters, T = 128, batch 16, AdamW
gpt-384    GPT of 6 layers, 6 heads, width 384 on 65 characters, T = 256, batch 8, AdamW
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

Layers = list[Any]
Library = Any
"""What has Module, Sequential, Linear, Conv2d, ...: nnmpi.nn, torch.nn or lib.jax_nn."""


class Workload(NamedTuple):
    """The shape of a batch, the number of classes, and the layers of the model.

    Without classes, the samples are their own targets, and the loss is the mean squared error.
    Samples that are words, integers, have a label at each position, and scores are (N T, words).
    """

    shape: tuple[int, ...]
    classes: int | None
    layers: Callable[[Library], Layers]
    are_words: bool = False
    weight_decay: float = 0.0  # of AdamW; without it the optimizer is Adam

    @property
    def has_images(self) -> bool:
        return len(self.shape) == 4


def mlp(nn: Library, *widths: int) -> Layers:
    """Linear layers with ReLU between."""
    return [layer for k, o in pairwise(widths) for layer in (nn.Linear(k, o), nn.ReLU())][:-1]


def cnn(nn: Library, channels: tuple[int, ...], widths: tuple[int, ...]) -> Layers:
    """3x3 convolutions with ReLU and pooling, then linear layers."""
    blocks = [
        (nn.Conv2d(c, o, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)) for c, o in pairwise(channels)
    ]
    return [*(layer for block in blocks for layer in block), nn.Flatten(), *mlp(nn, *widths)]


def head(nn: Library, channels: int, classes: int) -> Layers:
    """The mean over the image, and a linear layer."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def residual(nn: Library, c: int, o: int, stride: int) -> Any:
    """ReLU(x + two 3x3 convolutions of x); where the shape changes, x goes through a 1x1 one."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                *(nn.Conv2d(c, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()),
                *(nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o)),
            )
            self.skip = nn.Sequential()
            if stride > 1:
                self.skip = nn.Sequential(nn.Conv2d(c, o, 1, stride, bias=False), nn.BatchNorm2d(o))
            self.relu = nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.relu(self.body(x) + self.skip(x))

    return Block()


def resnet(nn: Library, widths: Sequence[int] = (32, 64, 128), each: int = 1) -> Layers:
    """A stem, and so many residual blocks for each number of channels."""
    stem = nn.Conv2d(3, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
    sizes = [(widths[0], widths[0], 1), *((c, o, 2) for c, o in pairwise(widths))]
    sizes = [size for c, o, s in sizes for size in ((c, o, s), *[(o, o, 1)] * (each - 1))]
    return [*stem, *(residual(nn, *size) for size in sizes), *head(nn, widths[-1], 10)]


def separable(nn: Library, c: int, o: int, stride: int) -> Layers:
    """A depthwise 3x3 and a 1x1 convolution, each with GroupNorm and SiLU."""
    depthwise = nn.Conv2d(c, c, 3, stride, 1, groups=c, bias=False)
    pointwise = nn.Conv2d(c, o, 1, bias=False)
    return [depthwise, nn.GroupNorm(8, c), nn.SiLU(), pointwise, nn.GroupNorm(8, o), nn.SiLU()]


def mobilenet(nn: Library) -> Layers:
    """A stem and four depthwise-separable convolutions."""
    stem = nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.GroupNorm(8, 32), nn.SiLU()
    sizes = (32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2)
    return [*stem, *(layer for s in sizes for layer in separable(nn, *s)), *head(nn, 256, 10)]


def autoencoder(nn: Library) -> Layers:
    """Two convolutions that halve the image, and two transposed ones that double it."""
    down = nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()
    up = nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1)
    return [*down, *up]


WORKLOADS = {
    "W1": Workload((64, 1, 28, 28), 10, lambda nn: cnn(nn, (1, 32, 64), (3136, 128, 64, 10))),
    "W2": Workload((128, 784), 10, lambda nn: mlp(nn, 784, 1024, 1024, 10)),
    "W3": Workload((64, 4), 3, lambda nn: mlp(nn, 4, 50, 3)),
    "W4": Workload((64, 3, 32, 32), 10, lambda nn: cnn(nn, (3, 64, 128, 256), (4096, 256, 10))),
    "W5": Workload((64, 3, 32, 32), 10, resnet),
    "W6": Workload((64, 3, 32, 32), 10, mobilenet),
    "W7": Workload((64, 1, 28, 28), None, autoencoder),
}

LARGE = {
    **{
        f"{case}-1024": WORKLOADS[case]._replace(shape=(1024, *WORKLOADS[case].shape[1:]))
        for case in ("W1", "W2", "W4")
    },
    "R-1024": Workload((1024, 3, 32, 32), 10, lambda nn: resnet(nn, (64, 128, 256, 512), 2)),
}
"""Workloads for GPUs."""


def lstm(nn: Library, width: int, words: int | None = None) -> Layers:
    """An LSTM over sequences of numbers, or of words, with a score for each word at each position.

    Scores are rows (N T, words): both libraries have their fastest losses for these.
    """

    class Sequences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(width, width, batch_first=True)
            if words:
                self.embed, self.scores = nn.Embedding(words, width), nn.Linear(width, words)

        def forward(self, x: Any) -> Any:
            if words is None:
                return self.lstm(x)[0]
            return self.scores(self.lstm(self.embed(x))[0]).reshape(-1, words)

    return [Sequences()]


def attention(nn: Library, heads: int) -> Any:
    """Causal self-attention of (N, T, heads 3 D): query, key and value of each head together."""
    if hasattr(nn, "SelfAttention"):
        return nn.SelfAttention(heads, is_causal=True)

    class Attention(nn.Module):
        def forward(self, x: Any) -> Any:
            n, t, channels = x.shape
            parts = x.reshape(n, t, heads, 3, channels // heads // 3)
            q, k, v = (parts[:, :, :, i].swapaxes(1, 2) for i in range(3))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return y.swapaxes(1, 2).reshape(n, t, channels // 3)

    return Attention()


def block(nn: Library, heads: int, width: int) -> Any:
    """x + attention(norm(x)), and that plus an MLP of its norm."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.attend = nn.LayerNorm(width), attention(nn, heads)
            self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.ln_2, self.gelu = nn.LayerNorm(width), nn.GELU("tanh")
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            x = x + self.c_proj(self.attend(self.c_attn(self.ln_1(x))))
            return x + self.down(self.gelu(self.up(self.ln_2(x))))

    return Block()


def gpt(nn: Library, layers: int, heads: int, width: int, words: int, positions: int) -> Layers:
    """nnmpi.nn.GPT, and the same of another library, with parameters in the same order."""

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(positions, width)
            self.h = nn.Sequential(*(block(nn, heads, width) for _ in range(layers)))
            self.ln_f = nn.LayerNorm(width)

        def forward(self, x: Any) -> Any:
            y = self.ln_f(self.h(self.wte(x) + self.wpe.weight))
            return (y @ self.wte.weight.T).reshape(-1, words)

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gpt = nn.GPT(layers, heads, width, words, positions)

        def forward(self, x: Any) -> Any:
            return self.gpt(x).transpose(0, 2, 1).reshape(-1, words)

    return [Scores() if hasattr(nn, "GPT") else Rows()]


def _gpt(layers: int, heads: int, width: int, batch: int, positions: int) -> Workload:
    words = 65
    return Workload(
        *((batch, positions), words),
        lambda nn: gpt(nn, layers, heads, width, words, positions),
        are_words=True,
        weight_decay=0.1,
    )


LANGUAGE = {
    "lstm": Workload((32, 64, 256), None, lambda nn: lstm(nn, 256)),
    "lstm-text": Workload((32, 64), 65, lambda nn: lstm(nn, 256, 65), are_words=True),
    "gpt-128": _gpt(4, 4, 128, 16, 128),
    "gpt-384": _gpt(6, 6, 384, 8, 256),
}
"""Workloads of sequences."""

CASES = WORKLOADS | LARGE | LANGUAGE
"""All workloads by name."""

Batch = tuple[np.ndarray, np.ndarray]
"""Samples and targets."""


def batch(w: Workload) -> Batch:
    """Random samples and targets; the time does not depend on their values."""
    rng = np.random.default_rng(0)
    if w.are_words:
        assert w.classes
        x, y = (rng.integers(0, w.classes, shape) for shape in (w.shape, prod(w.shape)))
        return x, y
    x = rng.standard_normal(w.shape, dtype=np.float32)
    return x, x if w.classes is None else rng.integers(0, w.classes, w.shape[0])


def drawn(parameters: Iterable[Any]) -> Iterator[tuple[Any, np.ndarray]]:
    """Each parameter, with values of its shape: every library starts with the same."""
    rng = np.random.default_rng(1)
    for p in parameters:
        low, high = (0.5, 1) if len(p.shape) == 1 else (-1, 1)
        yield p, rng.uniform(low, high, p.shape).astype(np.float32) / prod(p.shape[1:]) ** 0.5
