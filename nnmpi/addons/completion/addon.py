"""Completes options in shells."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.completion",),
    commands={"completion": ("nnmpi.completion", "print the completion script of a shell")},
)
