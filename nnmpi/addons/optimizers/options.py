"""Adds values to the option --optimizer: the optimizers of the add-on `optimizers`. Some of these
need all elements of a parameter for an update, so a rank must have the whole parameter."""

from nnmpi.options.features import WHOLE_MATRICES, AddOnOptions, Feature, choice

FEATURES = (
    Feature("layerwise", choice("optimizer", "lamb", "lars"), covers="--optimizer lamb or lars"),
    Feature("optimizer muon", choice("optimizer", "muon"), relies_on=(WHOLE_MATRICES,)),
)

ADDED = AddOnOptions(features=FEATURES, choices={"optimizer": ("lamb", "lars", "muon")})
