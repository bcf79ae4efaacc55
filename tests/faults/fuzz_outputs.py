"""Links, pipes and files of users in the place of what a run writes."""

import os
from pathlib import Path

import numpy as np
from fuzzing import Fault, Outcome, command

OPTIONS = ("save", "trace", "log")
LINKS = {  # by name: where they lie, and where they lead to
    "shared/a": "../own/notes",
    "shared/b": "../own/new",
    "shared/c": "a",
    "shared/d": "d",
    "own/into": "../shared/a",
    "own/back": "../own/../shared/./b",
    "own/fair": "far",
    "own/folder": ".",
}
HOSTILE = (
    *("shared/a", "shared/b", "shared/c", "shared/d", "own/into", "own/back", "own/folder/into"),
    *("shared/pipe", "own/pipe", "own/folder", "shared/../shared/a"),
)
FAIR = ("own/fair", "own/free", "shared/free", "own/folder/free", "shared/../own/fair")


def case(rng: np.random.Generator, folder: Path) -> Outcome:
    for name in ("own", "shared"):
        (folder / name).mkdir()
        os.mkfifo(folder / name / "pipe")
    (folder / "shared").chmod(0o1777)
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    notes = folder / "own" / "notes"
    notes.write_bytes((b"notes", b'{"event": "start"}', b"", b'{"even')[rng.integers(4)])
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
        return Outcome(Fault.LOST, f"{option} {path} has overwritten what a link leads to")
    if is_hostile and (status != 2 or sorted(os.listdir(folder / "own")) != names):
        return Outcome(Fault.WRONG, f"{option} {path} was written")
    if not is_hostile and (status != 0 or not path.is_file()):
        return Outcome(Fault.WRONG, f"{option} {path} was not written")
    return outcome
