"""Adds values to the option --optimizer: the optimizers of PyTorch that core does not have."""

from nnmpi.options.features import AddOnOptions

ADDED = AddOnOptions(
    choices={"optimizer": ("adadelta", "adagrad", "adamax", "asgd", "nadam", "radam")},
)
