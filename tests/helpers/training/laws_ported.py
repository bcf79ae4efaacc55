"""What models from elsewhere use, on any number of ranks: layers, functions, and hooks."""

from collections.abc import Callable
from typing import Any

import numpy as np
from helpers.training.pipelined import Options, digits

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm
from nnmpi.io.output import Report


def layers() -> nn.Sequential:
    """Of digits, 8x8."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 3, padding=1, padding_mode="reflect"), nn.ReLU(inplace=True)),
        *(nn.MaxPool2d(2), nn.PReLU(6), nn.Dropout2d(0.3), nn.InstanceNorm2d(6, affine=True)),
        *(nn.Upsample(scale_factor=2), nn.Conv2d(6, 4, 3, padding="same", padding_mode="circular")),
        *(nn.ELU(0.5, inplace=True), nn.Upsample(5, mode="bilinear"), nn.Softplus()),
        *(nn.Flatten(), nn.Linear(100, 20), nn.PReLU(), nn.Dropout(0.1, inplace=True)),
        *(nn.Linear(20, 12), nn.LeakyReLU(0.2, True), nn.SiLU(True), nn.Linear(12, 10)),
    )


class Functions(nn.Module):
    """Padding, the places of maxima, sums of products, and sorting between layers."""

    def __init__(self) -> None:
        self.conv, self.pool = nn.Conv2d(1, 5, 3), nn.MaxPool2d(2, return_indices=True)
        self.mix = nn.Parameter(np.linspace(-1, 1, 20).reshape(5, 4).astype("float32"))
        self.inner, self.out = nn.Linear(16, 12), nn.Linear(12, 10)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        y, places = self.pool(self.conv(nnmpi.pad(x, (1, 1, 1, 1), "replicate")))
        y = nnmpi.einsum("ncij,cd->nid", y * (places & 1), self.mix)
        y = nnmpi.sort(nnmpi.cumsum(y, dim=2), dim=1, descending=True).values
        y = self.inner(y.flatten(1))
        return self.out(y + nnmpi.topk(y, 3).values.mean(1, keepdims=True))


def doubled(module: nn.Module, args: Any, y: nnmpi.Tensor) -> nnmpi.Tensor:
    return y * 2


def shifted(module: nn.Module, args: Any) -> nnmpi.Tensor:
    return args[0] + 1


def hooked() -> nn.Sequential:
    """Hooks of a layer that would run with its neighbours, of one with weights, and of a block."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(96, 24), nn.ReLU(), nn.Sequential(nn.Linear(24, 24), nn.Tanh())),
        *(nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 10)),
    )
    model[1].register_forward_hook(doubled)
    model[4].register_forward_pre_hook(shifted)
    model[6].register_forward_hook(doubled)
    return model


PLAIN: Options = {"optimizer": "sgd", "lr": 0.02, "clip_norm": 0.5, "micro_batches": 2}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "layers": layers,
    "functions": Functions,
    "hooked": hooked,
}
LAYOUTS: list[Options] = [
    {"dp": 2},
    {"dp": 2, "zero": 3, "bucket_mb": 0.001},
    {"pp": 2},
    {"pp": 2, "recompute": True},
    {"pp": 2, "schedule": "zb-h1"},
    {"tp": 2},
]
"""Of two ranks."""


def a_hook_runs_where_its_module_does(comm: Comm) -> None:
    """Of a pipeline: on one rank, once a micro-batch; twice with recompute."""
    for recompute in (False, True):
        sizes: list[int] = []

        def seen(module: nn.Module, args: Any, y: nnmpi.Tensor, sizes: list[int] = sizes) -> None:
            if module.training:
                sizes.append(len(y))

        def build(hook: Callable[..., None] = seen) -> nn.Sequential:
            model = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
            model[2].register_forward_hook(hook)
            return model

        options: Options = {"pp": 2, "cut": "3", "micro_batches": 3, "recompute": recompute}
        trainer = Trainer(Config(steps=1, batch_size=24, **options), build, digits(), comm)
        sizes.clear()  # of the passes that record the model
        trainer.fit(Report(quiet=True))
        assert sizes == [8] * (3 * (1 + recompute) if comm.rank == 0 else 0)
