"""Machines that are not measured but described by their data sheet: `--machine a100-80g:8`, or a
user's TOML file.

`description` reads a description and makes a Machine of it; `roofline` estimates the seconds of a
model's units from the operations and the memory traffic of their kernels."""

from nnmpi.addons.planning.described.description import Description as Description
from nnmpi.addons.planning.described.description import description_named as description_named
from nnmpi.addons.planning.described.description import machine_named as machine_named
from nnmpi.addons.planning.described.description import machines as machines
from nnmpi.addons.planning.described.description import network_named as network_named
from nnmpi.addons.planning.described.roofline import RooflineTimes as RooflineTimes
from nnmpi.addons.planning.described.roofline import model_times as model_times
