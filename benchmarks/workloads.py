"""The four training steps that nnmpi and PyTorch are timed on, made alike for both.

W1  mnist-cnn on 1x28x28, batch 64         W3  MLP 4-50-3, batch 64
W2  MLP 784-1024-1024-10, batch 128        W4  CNN 64-128-256 on 3x32x32, batch 64
"""

from typing import Any, NamedTuple

import numpy as np
from timing import Step


class Workload(NamedTuple):
    """Shape of a batch, classes, convolution channels and widths of the linear layers."""

    shape: tuple[int, ...]
    classes: int
    channels: tuple[int, ...]
    widths: tuple[int, ...]


WORKLOADS = {
    "W1": Workload((64, 1, 28, 28), 10, (1, 32, 64), (3136, 128, 64, 10)),
    "W2": Workload((128, 784), 10, (), (784, 1024, 1024, 10)),
    "W3": Workload((64, 4), 3, (), (4, 50, 3)),
    "W4": Workload((64, 3, 32, 32), 10, (3, 64, 128, 256), (4096, 256, 10)),
}


def batch(w: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Random numbers and labels: what they are does not matter to the time."""
    rng = np.random.default_rng(0)
    return rng.standard_normal(w.shape, dtype=np.float32), rng.integers(0, w.classes, w.shape[0])


def layers(nn: Any, w: Workload) -> list[Any]:
    """The same model from either library's `nn`: their layers have one face."""
    made: list[Any] = []
    for c, o in zip(w.channels, w.channels[1:], strict=False):
        made += [nn.Conv2d(c, o, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    if w.channels:
        made.append(nn.Flatten())
    for i, (k, o) in enumerate(zip(w.widths, w.widths[1:], strict=False)):
        made += [nn.ReLU()] if i else []
        made.append(nn.Linear(k, o))
    return made


def nnmpi_step(w: Workload, algorithm: str = "auto", device: str = "cpu") -> Step:
    """A training step of nnmpi through its public face, from a NumPy batch to the update."""
    import nnmpi
    from nnmpi import backend, nn, optim

    x, y = batch(w)
    on = backend.get(device)
    model = nn.Sequential(*layers(nn, w))
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            m.algorithm = algorithm
    model.to("float32", on)
    opt, loss_of = optim.Adam(model.parameters(), lr=1e-4), nn.CrossEntropyLoss()
    inputs = on.asarray(x)

    def step() -> Any:
        loss = loss_of(model(nnmpi.tensor(inputs, on=on)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return step


def torch_step(w: Workload, best: bool, device: str = "cpu") -> Step:
    """The same in PyTorch, as users write it, or with channels_last and fused Adam (`best`)."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    x, y = (torch.from_numpy(a).to(device) for a in batch(w))
    model = nn.Sequential(*layers(nn, w)).to(device)
    if best and w.channels:
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    opt = torch.optim.Adam(model.parameters(), 1e-4, **({"fused": True} if best else {}))
    loss_of = nn.CrossEntropyLoss()

    def step() -> Any:
        opt.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        opt.step()
        return loss

    return step
