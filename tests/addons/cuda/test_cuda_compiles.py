"""Every source in CUDA C compiles for GPUs."""

import re

import pytest
from helpers.kernels.nvrtc import cubin_of, needs_nvrtc

from nnmpi.addons.cuda import launch

NAMES = sorted(path.stem for path in launch.FOLDER.glob("*.cu"))
KERNEL = re.compile(r"^(?:KERNEL|REDUCTION) (\w+)\(", re.MULTILINE)
ARCHITECTURES = ("sm_80", "sm_90")

pytestmark = needs_nvrtc


@pytest.mark.one_in(3)
@pytest.mark.parametrize("T", launch.FLOATS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", NAMES)
def test_it_compiles(name: str, architecture: str, T: str) -> None:
    cubin = cubin_of(name, architecture, T)
    assert cubin.startswith(b"\x7fELF")
    for kernel in KERNEL.findall(launch.source(name)):
        assert b".text." + kernel.encode() + b"\0" in cubin
