"""The accuracy of convolutions, against float64 by im2col: python benchmarks/precision.py

Of single layers: the largest error over the largest value, of the value and both gradients, in
float32 and in 16 bits, of arrays that are rounded to these first. Of whole models in float32: the
error of the gradient, and how far the losses of some steps are from those of float64 (in float32
any two runs drift apart; the question is whether one does so faster).
"""

import importlib.util
from collections.abc import Sequence

import numpy as np
from lib.timing import Row

import nnmpi
from nnmpi import nn, optim
from nnmpi.arrays.dtypes import named
from nnmpi.autograd.ops import conv

LAYERS = {
    "W1 conv2": (64, 32, 14, 64),
    "W4 conv2": (64, 64, 16, 128),
    "W4 conv3": (64, 128, 8, 256),
}
"""Images, channels in, side, channels out."""

DTYPES = ("float32", "bfloat16", "float16")

ALGORITHMS = ("im2col", "winograd2", "winograd4")

STEPS = 60

MODELS: dict[str, tuple[tuple[int, int], tuple[int, ...]]] = {
    "W1": ((1, 28), (32, 0, 64, 0)),
    "W4": ((3, 32), (64, 0, 128, 0, 256, 0)),
    "12 convolutions": ((3, 32), (32, 32, 32, 32, 0, 64, 64, 64, 64, 0, 128, 128, 128, 128, 0)),
}
"""Channels and side of the images, and the channels of each convolution, 0 for pooling."""

PARTS = ("y", "dx", "dw")
Arrays = Sequence[np.ndarray]


def error(a: np.ndarray, exact: np.ndarray) -> float:
    """The largest difference over the largest value."""
    return float(np.abs(a.astype(np.float64) - exact).max() / np.abs(exact).max())


def draw(shape: tuple[int, int, int, int], seed: int = 0) -> list[np.ndarray]:
    """Images, a weight that preserves variance, and a gradient of the output."""
    n, c, side, o = shape
    rng = np.random.default_rng(seed)
    shapes = (n, c, side, side), (o, c, 3, 3), (n, o, side, side)
    x, w, g = (rng.standard_normal(s, dtype=np.float32) for s in shapes)
    return [x, w / np.float32(3 * c**0.5), g]


def nnmpi_conv(arrays: Arrays, algorithm: str) -> list[np.ndarray]:
    """y, dx and dw by one of nnmpi's algorithms."""
    x, w, g = arrays
    result = conv.conv2d(x, w, None, padding=1, algorithm=algorithm)
    assert result.prepare is not None
    shared = result.prepare(g, (True, True, False))
    return [result.value, result.vjps[0](shared, None), result.vjps[1](shared, None)]


def torch_conv(arrays: Arrays, channels_last: bool) -> list[np.ndarray]:
    """y, dx and dw by PyTorch, in either memory format."""
    import torch

    form = torch.channels_last if channels_last else torch.contiguous_format
    x, w, g = (torch.from_numpy(a).contiguous(memory_format=form) for a in arrays)
    x.requires_grad_()
    w.requires_grad_()
    y = torch.nn.functional.conv2d(x, w, padding=1)
    y.backward(g)
    return [y.detach().numpy(), x.grad.numpy(), w.grad.numpy()]


def layer_errors(
    shape: tuple[int, int, int, int], has_torch: bool, seed: int = 0, dtype: str = "float32"
) -> dict[str, list[float]]:
    """The errors of y, dx and dw by algorithm."""
    arrays = [a.astype(named(dtype)) for a in draw(shape, seed)]
    exact = nnmpi_conv([a.astype(np.float64) for a in arrays], "im2col")
    made = {a: nnmpi_conv(arrays, a) for a in ALGORITHMS}
    if has_torch and dtype == "float32":
        made |= {"T": torch_conv(arrays, False), "T*": torch_conv(arrays, True)}
    return {
        name: [error(a, e) for a, e in zip(parts, exact, strict=True)]
        for name, parts in made.items()
    }


def model_of(name: str, algorithm: str, dtype: str) -> nn.Module:
    """A model; the weights of all of one name are the same."""
    (channels, side), widths = MODELS[name]
    layers: list[nn.Module] = []
    for width in widths:
        if width:
            conv2d = nn.Conv2d(channels, width, 3, padding=1, algorithm=algorithm)
            layers += [conv2d, nn.ReLU()]
            channels = width
        else:
            layers.append(nn.MaxPool2d(2))
            side //= 2
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * side**2, 10))
    return model.to(dtype)


def training(name: str, algorithm: str, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    """The first gradient of a model, and its losses: classes are images with much noise."""
    (channels, side), _ = MODELS[name]
    rng = np.random.default_rng(0)
    classes = rng.standard_normal((10, channels, side, side))
    model, loss_of = model_of(name, algorithm, dtype), nn.CrossEntropyLoss()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    first, losses = np.empty(0), []
    for _ in range(STEPS):
        labels = rng.integers(10, size=32)
        x = classes[labels] + 3 * rng.standard_normal((32, channels, side, side))
        optimizer.zero_grad()
        loss = loss_of(model(nnmpi.tensor(x.astype("float32").astype(dtype))), labels)
        loss.backward()
        if not losses:
            first = np.concatenate([p.grad.astype("f8").ravel() for p in model.parameters()])
        losses.append(loss.item())
        optimizer.step()
    return first, np.array(losses)


def model_rows(about: Row) -> list[Row]:
    """Print and return what the algorithms do to whole models."""
    made: list[Row] = []
    print(f"\nwhole models against float64{'gradient':>16}{'losses':>10}{'last loss':>11}")
    for name in MODELS:
        exact, curve = training(name, "im2col", "float64")
        for algorithm in ALGORITHMS:
            gradient, losses = training(name, algorithm)
            errors = error(gradient, exact), float(np.abs(losses - curve).max())
            print(f"{name + ' ' + algorithm:<28}{errors[0]:>16.1e}", end="")
            print(f"{errors[1]:>10.1e}{losses[-1]:>11.4f}")
            row = {"benchmark": "precision", "case": name, "algorithm": algorithm, "ranks": 1}
            made.append({**row, "error gradient": errors[0], "error losses": errors[1], **about})
    return made


def rows(has_torch: bool, about: Row) -> list[Row]:
    """Print and return the errors of all layers."""
    made: list[Row] = []
    for dtype in DTYPES:
        print(f"\nlargest {dtype} error of a convolution over its largest value")
        print(f"{'':<22}" + "".join(f"{part:>10}" for part in PARTS))
        for layer, shape in LAYERS.items():
            for algorithm, errors in layer_errors(shape, has_torch, dtype=dtype).items():
                print(f"{layer} {algorithm:<13}" + "".join(f"{e:>10.1e}" for e in errors))
                row = {"benchmark": "precision", "case": layer, "algorithm": algorithm, "ranks": 1}
                found = dict(zip((f"error {part}" for part in PARTS), errors, strict=True))
                made.append({**row, "dtype": dtype, **found, **about})
    return made


if __name__ == "__main__":
    rows(importlib.util.find_spec("torch") is not None, {})
    model_rows({})
