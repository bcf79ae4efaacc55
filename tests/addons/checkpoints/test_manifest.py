"""Manifests that were changed by hand, and have the digest of what they say now."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnmpi import Config, Trainer
from nnmpi.addons.checkpoints.export import export
from nnmpi.addons.checkpoints.manifest import HEAD, MIDDLE, TAIL, from_bytes, read_manifest
from nnmpi.addons.checkpoints.read import StoredCheckpoint
from nnmpi.addons.checkpoints.schema import NAME, DamagedError, checked
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport

FREE = ("versions", "callbacks", "facts", "metadata", "sizes")
"""Names of fields with texts, or values, of any kind; or of an add-on, which checks them."""

OPTIONAL, FIT = ("options", "measured", "changes", "metrics"), (type(None), str, float, list)
"""Names of objects whose fields may be missing or None; many are texts, or floats."""

WRONG: dict[type, tuple[Any, ...]] = {
    int: ("1", -1, 2**70, 1.5, None, True, []),
    float: ("x", None, True, {}),
    str: (5, None, ["x"]),
    bool: (2, "yes", None),
    list: (5, {}, None),
    dict: (5, [], None),
    type(None): ("x", [], -1),
}
TYPES = ("int64", "int32", "float16", "object", "x")
"""Put in place of float32, whose numbers have four bytes."""


class Counter:
    """A callback with a state."""

    def on_step(self, *_: object) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {"calls": 3, "sums": np.arange(3.0)}

    def load_state_dict(self, state: object) -> None: ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run within an epoch."""
    directory = tmp_path_factory.mktemp("checkpoints")

    def rank(comm: Comm) -> str:
        options: dict[str, Any] = {"model": "iris-mlp", "data": "iris", "pp": 2, "batch_size": 16}
        options |= {"optimizer": "adam", "dtype": "float16", "steps": 9}
        log = str(directory / "log") if comm.rank == 0 else None
        config = Config(**options, log=log, checkpoint_dir=str(directory), save_every="3", keep=1)
        trainer = Trainer(config, comm=comm, callbacks=[Counter()])
        trainer.fit(NullReport())
        return trainer.save_checkpoint(directory)

    return Path(threads.run(2, rank)[0])


def values(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """All values within one of JSON, by their keys."""
    yield path, value
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from values(item, (*path, key))


def changes(content: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Paths of fields, and what is put there; `...` for nothing."""
    for path, value in values(content):
        if not path or any(name in path for name in FREE):
            continue
        is_free = any(name in path for name in OPTIONAL)
        for other in WRONG[type(value)]:
            may_be = is_free and (type(other) in FIT or type(other) is type(value))
            if not may_be and (type(other) is not type(value) or type(value) is int):
                yield path, other
        if value == "float32" and not is_free:
            yield from ((path, other) for other in TYPES)
        if not is_free:
            yield path, ...
        if isinstance(value, list) and value and not is_free:
            yield path, [*value, value[-1]]
            yield path, value[:-1]


def read_all(folder: Path) -> tuple[Any, ...]:
    """All that is in a checkpoint."""
    found = StoredCheckpoint(folder, read_manifest(folder))
    owned = [x.copied() for x in found.snapshot().arrays]
    export(found, str(folder / "model.safetensors"), optimizer=True)
    files = [path.read_bytes() for path in sorted(folder.glob("model.*"))]
    facts = found.manifest._replace(about_json=None, time=0.0, files=())
    return repr((facts, found.about(), owned)), *files


def to_bytes(content: Any) -> bytes:
    body = json.dumps(content, separators=(",", ":")).encode()
    return HEAD + hashlib.sha256(body).hexdigest().encode() + MIDDLE + body + TAIL


def fault(folder: Path, content: bytes, wanted: object) -> str:
    """What is wrong with how a manifest is read; nothing if it is refused, or means the same."""
    try:
        from_bytes(content)
        (folder / NAME).write_bytes(content)
        return "" if read_all(folder) == wanted else "it is read as another checkpoint"
    except ValueError as error:
        names = (f"{NAME}: manifest", "of the format", "safetensors is damaged")
        return "" if any(name in str(error) for name in names) else str(error)
    except Exception as error:
        return repr(error)


def test_a_checkpoint_of_an_older_nnmpi_is_refused(folder: Path) -> None:
    content = json.loads((folder / NAME).read_bytes())["manifest"]
    content["format"] = 1
    with pytest.raises(DamagedError, match=r"version 1 of the format, .* reads version 2: go on"):
        from_bytes(to_bytes(content))


@dataclass
class Fields:
    b: int
    c: int


@pytest.mark.parametrize(
    ("value", "fault"),
    [({"a": 1, "b": 1}, "without the key c"), ({"a": 1, "b": 1, "c": 1}, "unknown key a")],
    ids=("missing", "unknown"),
)
def test_wrong_keys_are_named(value: dict[str, int], fault: str) -> None:
    with pytest.raises(DamagedError, match=f"options is an object .*{fault}"):
        checked(value, Fields, "options")


def test_each_field_is_checked(folder: Path) -> None:
    """Another value is refused by the name of the field, or means the same."""
    original = (folder / NAME).read_bytes()
    content, wanted = json.loads(original)["manifest"], read_all(folder)
    faults = []
    for path, other in [*changes(content)]:
        parent, key = reduce(getitem, path[:-1], content), path[-1]
        before = parent[key]
        if other is ...:
            del parent[key]
        else:
            parent[key] = other
        faults += [
            (path, other, text) for text in [fault(folder, to_bytes(content), wanted)] if text
        ]
        if other is ... and isinstance(parent, list):
            parent.insert(key, before)
        else:
            parent[key] = before
    (folder / NAME).write_bytes(original)
    assert not faults, "\n".join(map(str, faults))
