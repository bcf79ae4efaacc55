"""cuDNN's plans for the operations of a step: the one that its heuristics choose, and the best."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from lib import workloads
from lib.gpu.device import Cases, Device, Found, LeftOutError
from lib.models import CASES

MODELS = ("W1", "R-1024", "W5", "W4-1024", "gpt-384")
NUMBERS = "float32", "tf32", "autocast"
LONGEST = 12
"""The operations that are named, those that gain most first."""

MOST_PLANS = 8
"""Of an operation: its heuristics list those first that they expect to be the fastest."""


def asked(case: str, numbers: str) -> dict[Any, Sequence[Any]]:
    """The operations of a step, and the arrays with which each was called first."""
    from nnmpi.addons.cuda import cudnn

    found, plain = dict[Any, Sequence[Any]](), cudnn.run

    def run(operation: Any, arrays: Sequence[Any]) -> None:
        found.setdefault(operation, arrays)
        plain(operation, arrays)

    cudnn.run = run
    options = {"tf32": numbers == "tf32", "narrow": numbers == "autocast"}
    try:
        workloads.nnmpi_step(CASES[case], device="cuda", **options)()
    finally:
        cudnn.run = plain
    return found


def times_of(on: Device, operation: Any, arrays: Sequence[Any]) -> dict[str, float]:
    """The microseconds of each plan by its name, that of the heuristics first."""
    import cupy

    from nnmpi.addons.cuda import cudnn

    lib = cudnn.library()
    handle, brief = lib.create_handle(), on._replace(rounds=3, seconds=0.005)
    lib.set_stream(handle=handle, stream=cupy.cuda.get_current_stream().ptr)
    graph, uids, _ = cudnn.build(operation, handle=handle)
    places = dict(zip(uids, (a.data.ptr for a in arrays), strict=True))
    found = {}
    for k in range(min(graph.get_execution_plan_count(), MOST_PLANS)):
        try:
            graph.build_plan_at_index(k)
        except (RuntimeError, lib.cudnnGraphNotSupportedError):
            continue  # it is excluded, or not for this device
        workspace = cupy.empty(max(graph.get_workspace_size_plan_at_index(k), 1), "uint8")
        run = partial(graph.execute_plan_at_index, places, workspace.data.ptr, k, handle=handle)
        found[f"{k}: {graph.get_plan_name_at_index(k)}"] = brief.times(run).device * 1e6
    return found


def gain(on: Device, case: str, numbers: str) -> Found:
    """What a step would gain if each operation had its best plan."""
    from nnmpi.addons.cuda import cudnn

    if cudnn.library() is None:
        raise LeftOutError("cuDNN or its front end is not installed")
    gains = {}
    for operation, arrays in asked(case, numbers).items():
        times = times_of(on, operation, arrays)
        first, best = next(iter(times.values())), min(times, key=times.__getitem__)
        text = f"{first:.1f} to {times[best]:.1f} us by {best}, of {len(times)} plans"
        gains[name_of(operation)] = first - times[best], text
    longest = sorted(gains.items(), key=lambda each: -each[1][0])[:LONGEST]
    total = sum(saved for saved, _ in gains.values())
    return Found(total, "us saved", {name: text for name, (_, text) in longest})


def name_of(operation: Any) -> str:
    """What an operation does, on which sizes."""
    if hasattr(operation, "op"):
        sizes = " ".join(str(list(getattr(operation, side))) for side in "xwy")
        return f"{operation.op.operation} {sizes} stride {operation.stride}"
    kind = "sdpa gradients" if operation.gradients else "sdpa"
    return f"{kind} {[*operation.q.dim]} causal {operation.causal}"


def cases(on: Device) -> Cases:
    return {f"{c}, {n}": partial(gain, on, c, n) for n in NUMBERS for c in MODELS}
