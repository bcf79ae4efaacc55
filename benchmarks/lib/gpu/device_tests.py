"""Tests on the device: first those that no emulated one decides, then all that can run on one."""

import importlib.util
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from lib.gpu.device import ROOT, Cases, Device, Found, LeftOutError

CUDA, STRICT, KERNELS = "tests/addons/cuda", "tests/strict", "tests/kernels/test_cuda.py"
GRAPHS, PRODUCTS = "tests/parallel/step/test_graphs.py", f"{CUDA}/test_cuda_products.py"
CALLS = f"{CUDA}/test_captured_calls.py"
LAYERS, STEPS = f"{CUDA}/test_captured_layers.py", f"{CUDA}/test_step_graphs.py"
CUDNN, SDPA, SUMS = (f"{CUDA}/test_{name}.py" for name in ("cudnn", "sdpa", "order_of_sums"))
LATE, TRAINING = f"{CUDA}/test_strict_late.py", f"{STRICT}/test_strict_training.py"

DECIDED: dict[str, Sequence[str]] = {
    "passes as CUDA graphs": (
        f"{GRAPHS}::test_graphs_have_the_bits_of_the_tape",
        f"{GRAPHS}::test_ranks_with_copies_have_the_bits_of_the_tape",
        f"{GRAPHS}::test_labels_that_the_pass_computes_have_the_bits_of_the_tape",
        f"{GRAPHS}::test_a_pass_that_reads_values_runs_by_the_tape",
        f"{GRAPHS}::test_wrong_labels_are_refused_before_a_graph_is_launched",
        f"{GRAPHS}::test_a_capture_changes_no_state_of_classes",
    ),
    "compiled steps as CUDA graphs": (
        f"{CALLS}::test_a_call_in_a_graph_in_a_graph_gives_its_bits_for_later_numbers",
        f"{LAYERS}::test_a_layer_is_captured_or_refused_by_name",
        f"{STEPS}::test_a_step_is_replayed_as_graphs_with_the_same_bits",
        f"{STEPS}::test_a_wrong_label_raises_as_written_and_changes_nothing",
        f"{STEPS}::test_ignored_labels_on_the_device_are_left_out_by_a_graph",
        f"{STEPS}::test_a_changed_learning_rate_and_factor_reach_a_graph",
        f"{STEPS}::test_what_a_graph_cannot_contain_runs_as_written_and_is_named",
    ),
    "cuDNN": (
        f"{CUDNN}::test_it_computes_what_im2col_does",
        f"{CUDNN}::test_a_gradient_of_weights_goes_where_it_is_wanted",
        f"{CUDNN}::test_training_steps_are_those_of_the_cpu",
        f"{SDPA}::test_packed_heads_are_read_where_they_lie",
        f"{SDPA}::test_heads_of_queries_share_keys_of_other_lengths",
        f"{SDPA}::test_other_attention_takes_products",
        f"{SDPA}::test_float32_and_parts_of_arrays_take_products",
        f"{SDPA}::test_a_transformer_takes_it_in_each_block",
    ),
    "products by cuBLAS": (
        f"{PRODUCTS}::test_matrices_are_read_and_written_where_they_lie",
        f"{PRODUCTS}::test_layouts_that_were_multiplied_before_are_right_for_other_arrays",
        f"{PRODUCTS}::test_tf32_that_is_allowed_later_is_used_for_layouts_of_before",
        f"{PRODUCTS}::test_sums_are_in_float32",
        f"{PRODUCTS}::test_no_columns_and_no_rows",
        f"{PRODUCTS}::test_the_op_gives_the_values_and_gradients_of_the_host",
    ),
    "kernels, and the order of sums": (
        f"{KERNELS}::test_it_computes_what_numpy_does",
        f"{KERNELS}::test_it_computes_16_bits_in_float32_and_rounds_once",
        f"{KERNELS}::test_the_same_scores_give_the_same_bits",
        f"{KERNELS}::test_a_step_is_made_as_the_device_has_decided",
        f"{KERNELS}::test_the_compiler_is_that_of_the_cuda_that_runs",
        f"{SUMS}::test_column_sums",
        f"{SUMS}::test_sums_of_batch_norm",
    ),
    "streams and late outcomes": (
        f"{LATE}::test_a_late_outcome_changes_no_bit",
        f"{LATE}::test_a_loss_that_is_not_finite_ends_the_run",
        f"{CUDA}/test_strict_late_halves.py",
        f"{TRAINING}::test_a_step_waits_once_and_computes_what_numpy_does",
        f"{TRAINING}::test_a_model_moves_there_and_back_in_the_middle_of_training",
        f"{TRAINING}::test_a_trainer_on_a_device_agrees_with_numpy",
    ),
    "ranks that share the GPU": (
        f"{STRICT}/test_strict_wire.py::test_pieces_on_a_device_are_those_of_the_host",
        f"{STRICT}/test_strict_conformance.py::test_a_layout_trains_on_a_device_as_one_rank_on_the_cpu",
        f"{STRICT}/test_strict_conformance.py::test_sums_in_memory_that_ranks_share_are_refused",
    ),
}
"""The tests that only a GPU decides: its libraries, captures, streams and rounding."""

FILES = {
    "tests/autograd/test_ops.py": "gradients of every op against float64 on the CPU",
    "tests/base/test_keyed.py": "random numbers are those of the CPU",
    KERNELS: "kernels in CUDA against NumPy",
    CUDNN: "convolutions by cuDNN against im2col",
    SDPA: "attention by cuDNN against float64",
    PRODUCTS: "products of 16 bits by cuBLAS against float64",
    GRAPHS: "passes as CUDA graphs have the bits of the tape",
    f"{STRICT}/test_strict_wire.py": "messages and sums beside kernels",
    f"{STRICT}/test_strict_halves.py": "sums in 16 bits",
    TRAINING: "training steps",
    f"{CUDA}/test_strict_late_halves.py": "steps in 16 bits whose outcome is read late",
    LATE: "steps whose outcome is read one step late",
    f"{STRICT}/test_strict_conformance.py": "ranks, threads that share the GPU, equal one",
    f"{STRICT}/test_files_of_devices.py": "a saved model, from CPU to GPU and back",
}
"""All files of tests that run on a device, and what each of them checks."""


class Outcomes:
    """A plug-in of pytest that notes how tests ended."""

    def __init__(self) -> None:
        self.passed, self.skipped, self.failed = 0, 0, list[str]()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.skipped:
            self.skipped += 1
        elif report.when == "call":
            self.passed += 1


def run(on: Device, test: str, about: str) -> Found:
    """Runs a test, or those of a file, in this process."""
    if importlib.util.find_spec("pytest") is None:
        raise LeftOutError("pytest is not installed")
    import pytest

    os.environ["NNMPI_TEST_DEVICE"] = "emulated" if on.emulated else "cuda"
    outcomes = Outcomes()
    # without the settings of this project, which name plug-ins
    plain = ("-c", os.devnull, f"--rootdir={ROOT}", "-q", "-p", "no:cacheprovider")
    status = pytest.main([*plain, "-p", "no:faulthandler", str(ROOT / test)], [outcomes])
    more = {"about": about, "skipped": outcomes.skipped}
    if outcomes.failed:
        return Found(len(outcomes.failed), "failed", more | {"tests": outcomes.failed})
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"pytest ended with {status!r}")
    return Found(outcomes.passed, "passed" if outcomes.passed else "skipped", more)


def decided(on: Device) -> Cases:
    return {
        test: partial(run, on, test, about) for about, tests in DECIDED.items() for test in tests
    }


def files(on: Device) -> Cases:
    return {name: partial(run, on, name, about) for name, about in FILES.items()}
