"""Links, pipes and files of users in the place of what a run writes."""

import os
from pathlib import Path

import numpy as np
from fuzzing import Fault, Outcome, command

OPTIONS = ("save", "trace", "log")
LINKS = {  # by name: where they lie, and where they lead to
    "own/fair": "far",
    "own/folder": ".",
}
HOSTILE = ("own/pipe", "own/folder", "own/notes")
FAIR = ("own/fair", "own/free", "own/folder/free", "own/../own/fair")


def case(rng: np.random.Generator, folder: Path) -> Outcome:
    (folder / "own").mkdir()
    os.mkfifo(folder / "own" / "pipe")
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    notes = folder / "own" / "notes"
    notes.write_bytes((b"notes of mine", b"[1, 2]")[rng.integers(2)])
    before, names = notes.read_bytes(), sorted(os.listdir(folder / "own"))
    option = OPTIONS[rng.integers(len(OPTIONS))]
    is_hostile = rng.random() < 0.7
    paths = HOSTILE if is_hostile else FAIR
    path = folder / paths[rng.integers(len(paths))]
    output = [f"--{option}={path}"]
    if rng.random() < 0.3:
        (folder / "run.toml").write_text(f"{option} = '{path}'")
        output = [f"--config={folder / 'run.toml'}"]
    model = ["--model=iris-mlp", "--data=iris", "--steps=1", "--quiet"]
    status, outcome = command([*model, *output], str(path))
    if outcome.fault is not None:
        return outcome
    if notes.read_bytes() != before:
        return Outcome(Fault.LOST, f"{option} {path} has overwritten a file of the user's")
    if is_hostile and (status != 2 or sorted(os.listdir(folder / "own")) != names):
        return Outcome(Fault.WRONG, f"{option} {path} was written")
    if not is_hostile and (status != 0 or not path.is_file()):
        return Outcome(Fault.WRONG, f"{option} {path} was not written")
    return outcome
