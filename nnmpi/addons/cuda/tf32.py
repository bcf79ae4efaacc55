"""TF32: whether a GPU may round the factors of float32 products to 11 bits."""

from typing import Any

from nnmpi.arrays.backend import Backend


def allow_tf32(on: Backend, allowed: bool) -> None:
    """Sets whether a GPU may round factors of float32 products to TF32 (11 bits): it may if
    `allowed`. Changes nothing if the backend `on` is that of the CPU, which never does.

    CuPy keeps this setting for the whole process.
    """
    if not on.is_host:
        kind = "COMPUTE_TYPE_TF32" if allowed else "COMPUTE_TYPE_DEFAULT"
        core = on.xp._core
        core.set_compute_type("float32", getattr(core._routines_linalg, kind))


def allows_tf32(xp: Any) -> bool:
    """True if this array library may use TF32 in float32 products."""
    core = xp._core
    return bool(core.get_compute_type("float32") == core._routines_linalg.COMPUTE_TYPE_TF32)


def set_up(config: Any, on: Backend) -> None:
    """Allows TF32 if a run has the option --tf32, and forbids it otherwise."""
    allow_tf32(on, config.tf32)
