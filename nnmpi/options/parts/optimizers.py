"""The values of --optimizer whose update of a parameter depends on all of its values."""

from nnmpi.options.features import WHOLE_MATRICES, Feature, Part, choice

FEATURES = (
    Feature("layerwise", choice("optimizer", "lamb", "lars")),
    Feature("optimizer muon", choice("optimizer", "muon"), relies_on=(WHOLE_MATRICES,)),
)

PART = Part(features=FEATURES, choices={"optimizer": ("lamb", "lars", "muon")})
