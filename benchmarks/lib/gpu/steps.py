"""Training steps: loops as written and compiled, steps of Trainers, and those of PyTorch."""

import shutil
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from lib import jobs, workloads
from lib.gpu.device import Cases, Device, Found, LeftOutError, Marks
from lib.gpu_steps import TRAINERS, WARM_UP, Run, trainer_step
from lib.models import CASES

LOOPS = (
    *("W1", "gpt-384", "R-1024", "W2", "lstm", "W4-1024", "gpt-128", "W5"),
    *("W4", "lstm-text", "W1-1024", "W2-1024", "W3", "W6", "W7"),
)
"""Workloads, those of most worth first."""

NOT_COMPILED = ("lstm-text",)
"""Its words are on the device, where nnmpi.compile cannot look at them."""

NUMBERS: dict[str, dict[str, bool]] = {
    "float32": {},
    "autocast": {"narrow": True},
    "tf32": {"tf32": True},
}
FORMS = {"written": False, "compiled": True}
TORCH_FORMS = {
    "PyTorch eager": {},
    "PyTorch compiled": {"compiled": True},
    "PyTorch reduce-overhead": {"compiled": True, "mode": "reduce-overhead"},
}
RUNS = TRAINERS | {"Trainer gpt:4x4x128": Run("gpt:4x4x128", "text", 16)}
DTYPES = "float32", "bfloat16", "float16"
REHEARSED = "W3"
"""The workload of PyTorch's steps on the emulated device, beside which they run on the CPU."""


def milliseconds(on: Device, make: Callable[[], Any], marks: Marks | None = None) -> Found:
    """The time of a step that `make` makes, and that of making it and of its first calls."""
    begin = time.perf_counter()
    step = make()
    for _ in range(WARM_UP):
        step()
    first = time.perf_counter() - begin
    times = on.times(step, marks)
    more = {"ms of the host": times.host * 1e3, "s before the first": first}
    return Found(times.device * 1e3, "ms", more)


def loops(on: Device) -> Cases:
    """Loops of a few lines, by autograd and by nnmpi.compile."""
    return {
        f"{case}, {numbers}, {form}": partial(
            *(milliseconds, on),
            partial(workloads.nnmpi_step, CASES[case], device="cuda", compiled=form_of, **options),
        )
        for numbers, options in NUMBERS.items()
        for case in LOOPS
        for form, form_of in FORMS.items()
        if not form_of or case not in NOT_COMPILED
    }


def trained(on: Device, case: str, dtype: str) -> Found:
    import cupy

    found = milliseconds(on, lambda: trainer_step(RUNS[case], True, dtype))
    peak = cupy.get_default_memory_pool().total_bytes()  # the pool keeps what was allocated
    return found._replace(more=found.more | {"MB at most": peak / 1e6})


def trainers(on: Device) -> Cases:
    """Steps of Trainers, on one GPU and, under mpirun, on all."""
    alone: Cases = {
        f"{case}, {dtype}, Trainer": partial(trained, on, case, dtype)
        for dtype in DTYPES
        for case in RUNS
    }
    together = [*RUNS][: 1 if on.emulated else None]
    return alone | {f"{case}, float32, all GPUs": partial(on_all, on, case) for case in together}


def on_all(on: Device, case: str) -> Found:
    """A Trainer's step on all GPUs, with a batch of its own on each."""
    import cupy

    gpus = cupy.cuda.runtime.getDeviceCount()
    if gpus == 1 or shutil.which("mpirun") is None:
        raise LeftOutError("one GPU, or no mpirun")
    command = jobs.mpirun(gpus, [*jobs.program(__name__), case, str(on.emulated)])
    return Found(*jobs.answer(command, case, timeout=50))


def main(case: str, emulated: str) -> None:
    """A rank of `on_all`; the first prints what it has found."""
    import json

    on = Device(emulated == "True")
    on.set_up(is_null=True)
    from nnmpi.comm import world

    comm, run = world(), RUNS[case]
    whole = run._replace(batch_size=run.batch_size * comm.size)
    found = milliseconds(on, lambda: trainer_step(whole, True, comm=comm))
    if comm.rank == 0:
        print(json.dumps(found))


def torch_cases(on: Device) -> Cases:
    """Steps of PyTorch at its best: channels last, fused optimizers."""
    return {
        f"{case}, {numbers}, {form}": partial(of_torch, on, case, numbers, form)
        for numbers in NUMBERS
        for case in ([REHEARSED] if on.emulated else LOOPS)
        for form in TORCH_FORMS
    }


def of_torch(on: Device, case: str, numbers: str, form: str) -> Found:
    torch = torch_of(on)
    options: dict[str, Any] = {**NUMBERS[numbers], **TORCH_FORMS[form]}
    options["narrow"] = "autocast" if options.pop("narrow", False) else ""
    device = "cpu" if on.emulated else "cuda"
    torch._dynamo.reset()  # else it counts compilations of the cases before
    make = partial(workloads.torch_step, CASES[case], best=True, device=device, **options)
    return milliseconds(on, make, of_events(torch, on.emulated))


def torch_of(on: Device) -> Any:
    """PyTorch, which has CUDA unless this is a rehearsal."""
    try:
        import torch
    except ImportError:
        raise LeftOutError("PyTorch is not installed") from None
    if not on.emulated and not torch.cuda.is_available():
        raise LeftOutError(f"PyTorch {torch.__version__} finds no GPU")
    return torch


def of_events(torch: Any, emulated: bool) -> Marks:
    """Events of PyTorch's current stream."""
    if emulated:
        return Marks(time.perf_counter, lambda before, behind: behind - before)

    def mark() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(before: Any, behind: Any) -> float:
        behind.synchronize()
        return float(before.elapsed_time(behind)) / 1e3

    return Marks(mark, between)
