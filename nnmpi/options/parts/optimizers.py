"""Optimizers whose update of a parameter depends on all of its values."""

from dataclasses import dataclass

from nnmpi.options.features import WHOLE_MATRICES, Feature, Part, choice


@dataclass(frozen=True, kw_only=True)
class Options:
    """They have no options of their own."""


FEATURES = (
    Feature("layerwise", choice("optimizer", "lamb", "lars")),
    Feature("optimizer muon", choice("optimizer", "muon"), relies_on=(WHOLE_MATRICES,)),
)

PART = Part(Options, FEATURES, {"optimizer": ("lamb", "lars", "muon")})
