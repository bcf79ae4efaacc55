"""Models with branches and experts, of digits (N, 1, 8, 8); they return scores of 10 classes."""

from collections.abc import Callable

from helpers.training.transformer_models import Residual

from nnmpi import nn


def towers() -> nn.Sequential:
    """Three towers of different sizes on the images themselves, concatenated; with statistics,
    dropout and a tower without parameters."""
    large = nn.Sequential(
        *(nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(96, 9)),
    )
    small = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh())
    none = nn.Sequential(nn.AvgPool2d(4), nn.Flatten())
    branches = {"none": none, "large": large, "small": small}
    return nn.Sequential(nn.Branches(branches, "concat"), nn.Linear(18, 12), nn.Linear(12, 10))


def _inner(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 20))


def summed() -> nn.Sequential:
    """Five branches with a shortcut, and layers around them that are divided themselves."""
    branches = {"skip": nn.Identity(), **{f"width{n}": _inner(n) for n in (7, 31, 3, 15)}}
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Branches(branches)),
        *(nn.LayerNorm(20), nn.Linear(20, 10)),
    )


def nested() -> nn.Sequential:
    """The mean of two branches, one of which has branches itself, that are stacked; two towers
    share their weights."""
    tower = nn.Linear(20, 6)
    inside = nn.Branches({"a": nn.Linear(20, 4), "b": nn.Linear(20, 4)}, "stack", dim=1)
    first = nn.Sequential(inside, nn.Flatten(), nn.Linear(8, 6))
    branches = nn.Branches({"first": first, "tower": tower, "same": tower}, "mean")
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 20), nn.Tanh(), branches, nn.Tanh(), nn.Linear(6, 10)
    )


def experts() -> nn.Sequential:
    """Five experts for the rows of an image, which have room for fewer tokens than choose them."""
    moe = nn.MixtureOfExperts(12, 10, 5, capacity_factor=0.8, auxiliary=0.1)
    return nn.Sequential(
        *(nn.Flatten(1, 2), nn.Linear(8, 12), nn.Tanh(), moe, nn.Dropout(0.1)),
        *(nn.Flatten(), nn.Linear(96, 10)),
    )


def switch() -> nn.Sequential:
    """Each whole image goes to one of four experts."""
    moe = nn.MixtureOfExperts(20, 15, 4, top_k=1, auxiliary=0.1, activation="relu")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), Residual(moe), nn.Linear(20, 10))


BRANCH_MODELS: dict[str, Callable[[], nn.Sequential]] = {
    "towers": towers,
    "summed": summed,
    "nested": nested,
    "experts": experts,
    "switch": switch,
}
