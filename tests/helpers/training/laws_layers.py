"""What layers outside of the models of the command line have to keep, on any number of ranks."""

from helpers.training.pipelined import Options, is_same, reference, run, trains_as_one_rank

from nnmpi import nn
from nnmpi.comm import Comm


def images() -> nn.Sequential:
    """Normalisations of images, sequences and rows, with initial values of its own."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 6, 3, padding=1), nn.GroupNorm(3, 6), nn.SiLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(2), nn.BatchNorm1d(6, momentum=None), nn.Identity(), nn.Flatten()),
        *(nn.Linear(96, 20), nn.LeakyReLU(), nn.LayerNorm(20, elementwise_affine=False)),
        *(nn.Linear(20, 12, bias=False), nn.BatchNorm1d(12, affine=False), nn.Linear(12, 10)),
    )
    nn.init.kaiming_normal_(model[0].weight, nonlinearity="relu")
    assert model[8].weight.array.any()  # drawn before it is written
    nn.init.xavier_uniform_(model[8].weight)
    nn.init.trunc_normal_(model[11].weight, std=0.2)
    model[13].requires_grad_(False)
    return model


LAYOUTS: dict[int, list[Options]] = {
    2: [{"dp": 2}, {"pp": 2}, {"tp": 2}],
    3: [{"dp": 3}, {"tp": 3}],
}
"""By the number of ranks; 100 samples in batches of 24 leave 4, which are cut unevenly."""


def they_train_as_on_one_rank(comm: Comm) -> None:
    for layout in LAYOUTS[comm.size]:
        trains_as_one_rank(layout, {"build": images, "clip_norm": 0.5, "micro_batches": 2}, comm)


def slices_have_the_same_bits(comm: Comm) -> None:
    case: Options = {"build": images, "reproducible": True, "slices": 2}
    if comm.size == 2:
        is_same(run(comm, **case), reference(comm, **case))
