"""Cross validation and grid search: mpirun -n 2 python examples/cross_validation.py

`nnmpi.sklearn` has a Classifier and a Regressor for scikit-learn (pip install 'nnmpi[sklearn]').
They take a function that makes the model, and options of `nnmpi.Config`, which a search may vary.
All ranks train each model together, so leave out `n_jobs`.
"""

from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, cross_val_score

from nnmpi import nn
from nnmpi.sklearn import Classifier


def build() -> nn.Module:
    """The wines have 13 features, and are of 3 classes."""
    return nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 3))


if __name__ == "__main__":
    x, y = load_wine(return_X_y=True)
    model = Classifier(build, epochs=10, lr=0.02)
    print("accuracy", cross_val_score(model, x, y, cv=2))
    search = GridSearchCV(model, {"lr": [0.002, 0.02]}, cv=2).fit(x, y)
    print("best", search.best_params_, search.predict(x[:3]))
