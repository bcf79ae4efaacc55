"""The table of the commands of nnmpi."""

from typing import NamedTuple


class Command(NamedTuple):
    """An entry of the table: the module whose `parser()` has the options, and what the command
    does."""

    parser: str
    text: str


COMMANDS = {
    "train": Command("nnmpi.train", "train a model, under mpirun on many ranks"),
    "simulate": Command("nnmpi.simulate", "predict and draw what layouts cost, without MPI"),
    "plan": Command("nnmpi.plan", "find the layout that trains a model fastest, without MPI"),
    "measure": Command("nnmpi.measure", "measure the times of a model on this machine, for plan"),
    "plot": Command("nnmpi.io.output.plot", "draw loss and accuracy, from logs of runs"),
    "report": Command("nnmpi.report", "write a page of runs, from their logs and traces"),
    "watch": Command("nnmpi.watch", "serve that page, and update it while a run continues"),
    "generate": Command("nnmpi.run.text.generate_command", "generate text with a saved model"),
    "tokenize": Command("nnmpi.tokenize.__main__", "write the tokens of a text to a file"),
    "checkpoint": Command("nnmpi.checkpoint", "list, verify and export checkpoints"),
    "course": Command("nnmpi.course", "hand out assignments of a course, and grade them"),
    "doctor": Command("nnmpi.doctor", "check the installation"),
    "completion": Command("nnmpi.completion", "print the completion script of a shell"),
}
"""By name: `nnmpi NAME` and `python -m nnmpi.NAME` are the same command."""
