"""Augmentation: images are shifted and mirrored, differently in each epoch.

The changes depend on the seed, the epoch and the sample, not on ranks or on the rest of the batch.
"""

import numpy as np

from nnmpi.arrays import keyed
from nnmpi.data.dataset import Split
from nnmpi.options.value_forms import Augment


def check_images(split: Split, how: Augment) -> None:
    """Raises ValueError unless the samples of a split can be augmented as `how` says: images (N, C,
    H, W) with one label each, larger than the largest shift, `how.crop` pixels."""
    if not isinstance(split.x, np.ndarray) or split.x.ndim != 4 or split.y.ndim > 2:
        shape = getattr(split.x, "shape", "several inputs")
        raise ValueError(
            f"augment needs images (N, C, H, W) with a label each, but the samples are {shape} "
            f"with labels {split.y.shape}: leave it out, or augment in the model's forward with "
            "nnmpi.random"
        )
    height, width = split.x.shape[2:]
    if how.crop >= min(height, width):
        raise ValueError(
            f"augment crop:{how.crop} could shift images of {height} x {width} pixels out of the "
            f"frame: give fewer than {min(height, width)} pixels"
        )


def augmented(
    x: np.ndarray, how: Augment, seed: int, epoch: int, samples: np.ndarray
) -> np.ndarray:
    """Returns the images x (B, C, H, W) of one epoch: each is shifted by up to `how.crop` pixels,
    with zeros at the edges, and mirrored or not, by its row number in `samples` (B,)."""
    (H, W), pad = x.shape[2:], how.crop
    key = keyed.key(seed, "augment", epoch)
    draws = keyed.uniform(key, np.arange(3, dtype="uint32"), samples[:, None])  # (B, 3)
    down, right = (draws[:, :2] * (2 * pad + 1)).astype("int64").T
    mirrored = (draws[:, 2] < 0.5) & how.flip
    around = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    y = np.empty_like(x)
    for i, (d, r, m) in enumerate(zip(down, right, mirrored, strict=True)):
        image = around[i, :, d : d + H, r : r + W]
        y[i] = image[..., ::-1] if m else image
    return y
