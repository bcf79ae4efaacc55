"""The subjects of benchmarks/training.py: nnmpi and PyTorch, each in a process of its own."""

from pathlib import Path

from lib import jobs, workloads
from lib.jobs import ONE_THREAD, Process
from lib.workloads import WORKLOADS, Steps

KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1)}

SUBJECTS: dict[str, dict[str, str]] = {
    "nnmpi": {},
    "nnmpi F(4x4)": {},
    "T": {},
    "T*": {},
    "T+": KEPT_MEMORY,
}
"""The subjects, and the environment variables of their processes."""


def processes(subject: str, device: str, folder: Path) -> list[Process]:
    """The process of a subject, which waits for tasks."""
    command = [*jobs.program(__name__), subject, device, str(folder)]
    return [Process(command, ONE_THREAD | SUBJECTS[subject])]


def steps_of(subject: str, device: str, case: str) -> Steps:
    """Training steps; on a GPU each ends when its loss is there."""
    w = WORKLOADS[case]
    if subject.startswith("nnmpi"):
        algorithm = "winograd4" if "F(4x4)" in subject else "auto"
        step = workloads.nnmpi_step(w, algorithm, device)
    else:
        step = workloads.torch_step(w, best=subject != "T", device=device)

    def run(steps: int) -> None:
        for _ in range(steps):
            loss = step()
            if device != "cpu":
                loss.item()

    return run


def main(subject: str, device: str, folder: str) -> None:
    """Time tasks until the pipe is closed."""
    jobs.serve(Path(folder), 0, lambda: None, lambda case, _: steps_of(subject, device, case))
