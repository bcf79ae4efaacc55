"""Estimators for scikit-learn."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(modules=("nnmpi.sklearn",))
