"""Predicts and draws what layouts cost, by textbook models of machines."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.sim", "nnmpi.simulate"),
    commands={"simulate": ("nnmpi.simulate", "predict and draw what layouts cost, without MPI")},
)
