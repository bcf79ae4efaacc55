"""The time of each CUDA graph of a step, between two events, and of each kernel by its name."""

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lib.gpu.device import Cases, Device, Found, Marks, of_cupy
from lib.gpu.steps import torch_of
from lib.gpu_steps import WARM_UP, step_of

STEPS = 20
GRAPHS = ("W1", "gpt-384", "R-1024", "W2", "lstm", "Trainer W1", "Trainer gpt:12x12x768")
PROFILED = ("W1", "gpt-384", "R-1024", "lstm", "Trainer gpt:12x12x768")
LONGEST = 15
"""The kernels of a profile that are named."""


class TimedGraph:
    """A CUDA graph, with an event on each side of its launches."""

    def __init__(self, graph: Any, marks: Marks) -> None:
        self._graph, self._marks, self.launches = graph, marks, list[tuple[Any, Any]]()

    def launch(self) -> None:
        import cupy

        if cupy.cuda.get_current_stream().is_capturing():  # it becomes a part of another graph
            self._graph.launch()
            return
        before = self._marks.mark()
        self._graph.launch()
        self.launches.append((before, self._marks.mark()))


@contextmanager
def timed_graphs(marks: Marks) -> Iterator[list[TimedGraph]]:
    """A context in which graphs that nnmpi captures are timed."""
    from nnmpi.addons.cuda.capture import Capture

    found, plain = list[TimedGraph](), Capture.graph

    @contextmanager
    def graph(self: Capture) -> Iterator[list[Any]]:
        with plain(self) as graphs:
            yield graphs
        found.append(TimedGraph(graphs[0], marks))
        graphs[0] = found[-1]

    Capture.graph = graph  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Capture.graph = plain  # type: ignore[method-assign]


def graphs_of(on: Device, case: str) -> Found:
    """The sum over graphs of a step of the median time of each."""
    marks = of_cupy(on.emulated)
    with timed_graphs(marks) as graphs:
        step = step_of(case, "compiled")
        for _ in range(WARM_UP + STEPS):
            step()
    launched = [graph.launches[-STEPS:] for graph in graphs if len(graph.launches) >= STEPS]
    if not launched:
        raise RuntimeError(f"{case}: no graph was launched {STEPS} times")
    times = [statistics.median(marks.between(*each) for each in one) * 1e6 for one in launched]
    return Found(sum(times), "us", {f"graph {k}": time for k, time in enumerate(times, 1)})


def graphs(on: Device) -> Cases:
    return {case: partial(graphs_of, on, case) for case in GRAPHS}


def kernels_by_name(torch: Any, run: Callable[[], None]) -> Counter[str]:
    """The microseconds of all that ran on the GPU within `run`, CuPy's kernels included."""
    kind = torch.profiler.ProfilerActivity
    activity = kind.CUDA if torch.cuda.is_available() else kind.CPU
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with torch.profiler.profile(activities=[activity]) as profile:
            run()
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    found: dict[str, float] = defaultdict(float)
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            found[event["name"]] += event["dur"]
    return Counter(found)  # type: ignore[arg-type]


def profile_of(on: Device, case: str) -> Found:
    torch = torch_of(on)
    import cupy

    step = step_of(case, "compiled")
    for _ in range(WARM_UP):
        step()

    def run() -> None:
        for _ in range(STEPS):
            step()
        cupy.cuda.Device().synchronize()

    found = kernels_by_name(torch, run)
    named = {name: time / STEPS for name, time in found.most_common(LONGEST)}
    return Found(sum(found.values()) / STEPS, "us", named)


def profiles(on: Device) -> Cases:
    return {case: partial(profile_of, on, case) for case in PROFILED}
