"""The estimators for scikit-learn, in its own cross validation and grid search."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from nnmpi import data, nn

IRIS = data.load("iris")
X = np.concatenate([IRIS.train.x, IRIS.test.x]).astype("float64")
NAMES = np.array(["setosa", "versicolor", "virginica"])
Y = NAMES[np.concatenate([IRIS.train.y, IRIS.test.y])]
QUICK: dict[str, Any] = {"epochs": 8, "lr": 0.02, "batch_size": 32}


@pytest.fixture(scope="module")
def made() -> Any:
    """The module of the estimators; processes that run other tests do not wait for its imports."""
    pytest.importorskip("sklearn", reason="scikit-learn is missing: pip install nnmpi[sklearn]")
    return import_module("nnmpi.sklearn")


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def line() -> nn.Module:
    return nn.Linear(4, 1)


def test_cross_validation_of_a_classifier(made: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from sklearn.model_selection import cross_val_score

    scores = cross_val_score(made.Classifier(small, **QUICK | {"epochs": 20}), X, Y, cv=3)
    assert scores.min() > 0.8  # of three classes
    assert capsys.readouterr().out == ""


def test_grid_search_finds_the_rate_that_trains(made: Any) -> None:
    from sklearn.model_selection import GridSearchCV

    rates = {"lr": [1e-6, 0.02]}
    search = GridSearchCV(made.Classifier(small, **QUICK), rates, cv=2, scoring="neg_log_loss")
    search.fit(X, Y)
    assert search.best_params_ == {"lr": 0.02}
    p = search.predict_proba(X[:5])
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-6)
    assert (search.predict(X[:5]) == search.classes_[p.argmax(1)]).all()


@pytest.mark.parametrize("is_flat", [True, False])
def test_a_regressor(is_flat: bool, made: Any) -> None:
    y = X @ [1.0, -2.0, 0.5, 1.0]
    y = y if is_flat else y[:, None]
    fitted = made.Regressor(line, epochs=60, lr=0.1).fit(X, y)
    assert fitted.predict(X).shape == y.shape
    assert fitted.score(X, y) > 0.99


def test_scikit_learn_knows_what_they_are(made: Any) -> None:
    from sklearn.base import clone, is_classifier, is_regressor

    one = made.Classifier(small, epochs=3)
    assert is_classifier(one)
    assert is_regressor(made.Regressor(line))
    other = clone(one.set_params(lr=0.5))
    assert other.get_params() == {"build": small, "epochs": 3, "lr": 0.5}
    with pytest.raises(ValueError, match="learning_rate is not an option; did you mean lr"):
        made.Classifier(small, learning_rate=1).fit(X, Y)
