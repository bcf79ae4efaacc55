"""Estimators for scikit-learn: cross validation and grid search of models of nnmpi.

>>> from nnmpi.sklearn import Classifier

It needs scikit-learn, the extra `sklearn`. Under mpirun all ranks call the same functions with the
same data, and train each model together.
"""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from nnmpi.io.output import NullReport
from nnmpi.nn import CrossEntropyLoss, Module, MSELoss
from nnmpi.nn.losses import Loss
from nnmpi.options.config import Config
from nnmpi.run.trainer import Trainer


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """A scikit-learn estimator that trains the model of `build` with options of `nnmpi.Config`."""

    def __init__(self, build: Callable[[], Module], **options: Any) -> None:
        self.build, self.options = build, options

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns `build` and the options that were given, by name."""
        return {"build": self.build, **self.options}

    def set_params(self, **params: Any) -> Self:
        """Replaces options, or `build`, and returns this estimator."""
        given = self.get_params() | params
        self.build, self.options = given.pop("build"), given
        return self

    def _fit(self, x: Any, y: np.ndarray, loss: Loss) -> Self:
        """Trains a new model with this loss; to save time, evaluations use one sample."""
        data = (x, y, x[:1], y[:1])
        self.trainer_ = Trainer(Config(**self.options), self.build, data, loss=loss)
        self.trainer_.fit(NullReport())
        return self


class Classifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A classifier whose model returns one score per class, in the order of the sorted labels."""

    def fit(self, x: Any, y: Any) -> Self:
        """Trains a new model; labels y may be numbers or strings."""
        self.classes_, numbers = np.unique(y, return_inverse=True)
        return self._fit(np.asarray(x), numbers, CrossEntropyLoss())

    def predict(self, x: Any) -> np.ndarray:
        """Returns, for each sample, the label with the largest score."""
        labels: np.ndarray = self.classes_[self.trainer_.predict(np.asarray(x)).argmax(1)]
        return labels

    def predict_proba(self, x: Any) -> np.ndarray:
        """Returns the probabilities (samples, classes), with columns in the order of `classes_`."""
        scores = self.trainer_.predict(np.asarray(x))
        e = np.exp(scores - scores.max(1, keepdims=True))
        p: np.ndarray = e / e.sum(1, keepdims=True)
        return p


class Regressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A regressor with the mean squared error; for targets (N,) the model returns (N, 1)."""

    def fit(self, x: Any, y: Any) -> Self:
        """Trains a new model; y is (N,) or (N, outputs)."""
        self.shape_ = np.shape(y)[1:]
        return self._fit(np.asarray(x), np.asarray(y, "float64").reshape(len(y), -1), MSELoss())

    def predict(self, x: Any) -> np.ndarray:
        """Returns the outputs of the model, in the shape of the targets y."""
        outputs: np.ndarray = self.trainer_.predict(np.asarray(x))
        return outputs.reshape(len(outputs), *self.shape_)
