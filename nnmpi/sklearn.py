"""Estimators for scikit-learn."""

from nnmpi.addons.interop.estimators import Classifier as Classifier
from nnmpi.addons.interop.estimators import Regressor as Regressor
