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
    """A model that `build` makes, trained as the options of `nnmpi.Config` say."""

    def __init__(self, build: Callable[[], Module], **options: Any) -> None:
        self.build, self.options = build, options

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """`build` and the options that are given."""
        return {"build": self.build, **self.options}

    def set_params(self, **params: Any) -> Self:
        """Give other options, or another `build`."""
        given = self.get_params() | params
        self.build, self.options = given.pop("build"), given
        return self

    def _fit(self, x: Any, y: np.ndarray, loss: Loss) -> Self:
        """Train a new model. A Trainer tests it after each epoch: on one sample, for no one."""
        data = (x, y, x[:1], y[:1])
        self.trainer_ = Trainer(Config(**self.options), self.build, data, loss=loss)
        self.trainer_.fit(NullReport())
        return self


class Classifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A classifier: the model returns a score for each class, in the order of the sorted labels."""

    def fit(self, x: Any, y: Any) -> Self:
        """Train a new model; y has labels of any kind."""
        self.classes_, numbers = np.unique(y, return_inverse=True)
        return self._fit(np.asarray(x), numbers, CrossEntropyLoss())

    def predict(self, x: Any) -> np.ndarray:
        """The label with the largest score."""
        labels: np.ndarray = self.classes_[self.trainer_.predict(np.asarray(x)).argmax(1)]
        return labels

    def predict_proba(self, x: Any) -> np.ndarray:
        """The probability of each class, in the order of `classes_`."""
        scores = self.trainer_.predict(np.asarray(x))
        e = np.exp(scores - scores.max(1, keepdims=True))
        p: np.ndarray = e / e.sum(1, keepdims=True)
        return p


class Regressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A regression by the mean squared error; of targets (N,) the model returns (N, 1)."""

    def fit(self, x: Any, y: Any) -> Self:
        """Train a new model; y is (N,) or (N, outputs)."""
        self.shape_ = np.shape(y)[1:]
        return self._fit(np.asarray(x), np.asarray(y, "float64").reshape(len(y), -1), MSELoss())

    def predict(self, x: Any) -> np.ndarray:
        """The outputs of the model, in the shape of y."""
        outputs: np.ndarray = self.trainer_.predict(np.asarray(x))
        return outputs.reshape(len(outputs), *self.shape_)
