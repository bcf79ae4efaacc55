"""Checks an installation."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.doctor", "nnmpi.comm.transport.installed"),
    commands={"doctor": ("nnmpi.doctor", "check the installation")},
)
