"""Arrays of CuPy on GPUs: kernels, late outcomes of steps, captured passes."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=(
        *("nnmpi.addons.cuda", "nnmpi.arrays.cuda"),
        *("nnmpi.parallel.deferred_steps", "nnmpi.parallel.cuda_graphs"),
    ),
    rows={
        "options": {"cuda": "nnmpi.addons.cuda.options:PART"},
        "device_kernels": {"cuda": "nnmpi.arrays.cuda:KERNELS"},
        "device_settings": {"cuda": "nnmpi.arrays.cuda.tf32:set_up"},
        "late_outcomes": {"cuda": "nnmpi.parallel.deferred_steps:deferred"},
        "captures": {"cuda": "nnmpi.parallel.cuda_graphs:captured"},
    },
    files=(
        *("scripts/gpu_check", "scripts/gpu_check.py"),
        *(f"tests/strict/test_strict_late{rest}.py" for rest in ("", "_halves", "_ranks")),
    ),
)
