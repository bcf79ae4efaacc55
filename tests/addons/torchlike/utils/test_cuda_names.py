"""PyTorch's names for devices, on a machine without a GPU, and calls that nnmpi does not need."""

import importlib

import numpy as np

import nnmpi


def test_calls_of_programs_change_nothing() -> None:
    with nnmpi.seeded(1):
        expected = nnmpi.rand(3).numpy()
    with nnmpi.seeded(1):
        nnmpi.cuda.manual_seed_all(7)
        nnmpi.cuda.manual_seed(7)
        nnmpi.cuda.set_device(0)
        nnmpi.cuda.empty_cache()
        nnmpi.cuda.synchronize()
        np.testing.assert_array_equal(nnmpi.rand(3).numpy(), expected)
    assert nnmpi.cuda.current_device() == 0


def test_the_devices_of_a_process() -> None:
    there = nnmpi.cuda.is_available()
    assert nnmpi.cuda.device_count() == nnmpi.accelerator.device_count() == int(there)
    device = nnmpi.accelerator.current_accelerator()
    assert (device is None) == (not there)
    assert device is None or device.type == "cuda"


def test_packages_can_be_imported() -> None:
    amp = importlib.import_module("nnmpi.cuda.amp")
    assert nnmpi.cuda.__getattr__("amp") is amp  # before an import has set the attribute
    with amp.autocast(enabled=False):
        assert not amp.GradScaler(enabled=False).is_enabled()
