"""Machines that are described by a data sheet, not measured: `--machine a100-80g:8`, or a user's
TOML file. `description` makes a Machine of it, `roofline` estimates the seconds of units."""

from nnmpi.addons.planning.described.description import Description as Description
from nnmpi.addons.planning.described.description import description_named as description_named
from nnmpi.addons.planning.described.description import machine_named as machine_named
from nnmpi.addons.planning.described.description import machines as machines
from nnmpi.addons.planning.described.description import network_named as network_named
from nnmpi.addons.planning.described.roofline import RooflineTimes as RooflineTimes
from nnmpi.addons.planning.described.roofline import model_times as model_times
