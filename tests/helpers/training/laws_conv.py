"""Every convolution and pool in one model, which trains in any layout as on one rank."""

from helpers.once import by_first, once
from helpers.training.pipelined import Options, Ran, equals, run

from nnmpi import nn
from nnmpi.comm import Comm, comm_self


def every_layer() -> nn.Sequential:
    """Of digits, 8x8: images, then sequences of 6."""
    return nn.Sequential(
        *(nn.Conv2d(1, 12, (3, 2), padding="same"), nn.ReLU(), nn.MaxPool2d((2, 1))),
        *(nn.Conv2d(12, 24, 3, 1, 1, groups=12, bias=False), nn.BatchNorm2d(24), nn.ReLU()),
        *(nn.Conv2d(24, 12, 1), nn.Tanh(), nn.ConvTranspose2d(12, 8, 4, 2, 1), nn.Tanh()),
        *(nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.Conv2d(8, 8, 3, groups=2)),
        *(nn.Conv2d(8, 6, (1, 2), dilation=(1, 2)), nn.MaxPool2d(2, 1, ceil_mode=True)),
        *(nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(2), nn.Conv1d(6, 5, 3, padding="same")),
        *(nn.GELU(), nn.Flatten(), nn.Linear(30, 10)),
    )


OPTIONS: Options = {"optimizer": "sgd", "momentum": 0.9, "lr": 0.02, "micro_batches": 2}


@once
def reference() -> Ran:
    return run(comm_self(), every_layer, **OPTIONS)


def every_layer_trains_as_one_rank(layout: Options, comm: Comm) -> None:
    equals(comm, run(comm, every_layer, **OPTIONS, **layout), by_first(comm, reference))
