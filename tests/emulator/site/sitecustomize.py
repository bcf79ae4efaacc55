"""Python with this folder on its path has the emulated device from its start."""

from emulator import load

load.install()
