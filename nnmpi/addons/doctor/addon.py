"""Checks an installation, and completes options in shells."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.doctor", "nnmpi.doctor", "nnmpi.completion"),
    commands={
        "doctor": ("nnmpi.addons.doctor.command", "check the installation"),
        "completion": (
            "nnmpi.addons.doctor.completion_command",
            "print the completion script of a shell",
        ),
    },
)
