"""The accuracy of float32 convolutions: largest error over largest value, against float64.

The value and both gradients are measured.
"""

from collections.abc import Sequence

import numpy as np
from lib.timing import Row

from nnmpi.autograd.ops import conv

LAYERS = {
    "W1 conv2": (64, 32, 14, 64),
    "W4 conv2": (64, 64, 16, 128),
    "W4 conv3": (64, 128, 8, 256),
}
"""Images, channels in, side, channels out."""

PARTS = ("y", "dx", "dw")
Arrays = Sequence[np.ndarray]


def error(a: np.ndarray, exact: np.ndarray) -> float:
    """The largest difference over the largest value."""
    return float(np.abs(a - exact).max() / np.abs(exact).max())


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
    shape: tuple[int, int, int, int], has_torch: bool, seed: int = 0
) -> dict[str, list[float]]:
    """The errors of y, dx and dw by algorithm."""
    arrays = draw(shape, seed)
    exact = nnmpi_conv([a.astype(np.float64) for a in arrays], "im2col")
    made = {a: nnmpi_conv(arrays, a) for a in ("im2col", "winograd2", "winograd4")}
    if has_torch:
        made |= {"T": torch_conv(arrays, False), "T*": torch_conv(arrays, True)}
    return {
        name: [error(a, e) for a, e in zip(parts, exact, strict=True)]
        for name, parts in made.items()
    }


def rows(has_torch: bool, about: Row) -> list[Row]:
    """Print and return the errors of all layers."""
    made: list[Row] = []
    print("\nlargest float32 error of a convolution over its largest value")
    print(f"{'':<22}" + "".join(f"{part:>10}" for part in PARTS))
    for layer, shape in LAYERS.items():
        for algorithm, errors in layer_errors(shape, has_torch).items():
            print(f"{layer} {algorithm:<13}" + "".join(f"{e:>10.1e}" for e in errors))
            row = {"benchmark": "precision", "case": layer, "algorithm": algorithm, "ranks": 1}
            named = dict(zip((f"error {part}" for part in PARTS), errors, strict=True))
            made.append({**row, **named, **about})
    return made
