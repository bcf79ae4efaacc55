"""Augmentation: images are moved and mirrored, in another way in each epoch.

How depends on the seed, the epoch and the sample: not on ranks or on the batch that it is in.
"""

import numpy as np

from nnmpi.arrays import keyed
from nnmpi.data.dataset import Split
from nnmpi.options.terms import Augment


def check_images(split: Split, how: Augment) -> None:
    """Raises ValueError unless samples are images, with labels that stay true of moved ones, and
    larger than the way that they are moved."""
    if not isinstance(split.x, np.ndarray) or split.x.ndim != 4 or split.y.ndim > 2:
        shape = getattr(split.x, "shape", "several inputs")
        raise ValueError(
            f"augment is for images (N, C, H, W) with labels of whole images, and samples are "
            f"{shape} with labels {split.y.shape}: leave it out, or draw by nnmpi.random in the "
            "model's forward"
        )
    height, width = split.x.shape[2:]
    if how.crop >= min(height, width):
        raise ValueError(
            f"augment crop:{how.crop} would move images of {height} x {width} pixels out of sight: "
            f"take fewer than {min(height, width)}"
        )


def augmented(
    x: np.ndarray, how: Augment, seed: int, epoch: int, samples: np.ndarray
) -> np.ndarray:
    """Images (B, C, H, W), each as it is in this epoch; zeros come in at the edges.

    samples: their numbers, (B,)
    """
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
