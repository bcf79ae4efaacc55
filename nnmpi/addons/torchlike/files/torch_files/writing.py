"""Writes files that `torch.load` reads, also with weights_only=True: tensors, dictionaries, lists,
tuples, numbers and strings.

    x/data.pkl      a pickle of the state, with the key of a storage in the place of each tensor
    x/data/0, ...   the elements of the tensors, in C order
    x/version, x/byteorder
"""

import json
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np

from nnmpi.addons.torchlike.files.nested import flattened
from nnmpi.addons.torchlike.files.torch_files.reading import STORAGES
from nnmpi.io.files.atomic import NotSavedError, check_target, refusing, replaced
from nnmpi.options.quoting import shown

STORAGE_OF = {dtype: f"{name}Storage" for name, dtype in STORAGES.items() if name != "Untyped"}
BEGIN, END = b"\x80\x02", b"."  # protocol 2
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
NO_HOOKS = b"ccollections\nOrderedDict\n)R"


def write(state: Any, path: str | os.PathLike[str]) -> None:
    """Writes a state as a file of PyTorch; raises NotSavedError for what it cannot have."""
    path = Path(path)
    check_target(path)
    arrays, text = flattened(state, path)
    for name, array in arrays.items():
        if array.dtype.name not in STORAGE_OF:
            raise NotSavedError(
                f"cannot save {shown(path)}: {name} has type {array.dtype}; convert it to one of "
                f"{', '.join(STORAGE_OF)}"
            )
    keys = {name: str(i) for i, name in enumerate(arrays)}
    pickled = b"".join((BEGIN, *_pickled(json.loads(text), arrays, keys), END))
    with (
        refusing(path),
        replaced(path, "x+b") as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, content in (("data.pkl", pickled), ("byteorder", b"little"), ("version", b"3\n")):
            archive.writestr(_entry(name), content)
        for name, array in arrays.items():
            ordered = array.astype(array.dtype.newbyteorder("<"), copy=False)
            archive.writestr(_entry(f"data/{keys[name]}"), ordered.tobytes())


def _entry(name: str) -> zipfile.ZipInfo:
    """An entry without a time, so that the same state gives the same bytes."""
    return zipfile.ZipInfo(f"archive/{name}")


def _pickled(
    value: Any, arrays: Mapping[str, np.ndarray], keys: Mapping[str, str]
) -> Iterator[bytes]:
    """Yields the operations of a pickle that make a value of the structure that `flattened` has
    returned. `keys` are those of the storages of arrays, by name."""
    if isinstance(value, list):
        yield b"]("
        for item in value:
            yield from _pickled(item, arrays, keys)
        yield b"e"
    elif not isinstance(value, dict):
        yield _scalar(value)
    elif "tensor" in value:
        yield from _tensor(arrays[value["tensor"]], keys[value["tensor"]])
    elif "tuple" in value:
        yield b"("
        for item in value["tuple"]:
            yield from _pickled(item, arrays, keys)
        yield b"t"
    else:
        yield b"}("
        for key, item in value["dict"]:
            yield _scalar(key)
            yield from _pickled(item, arrays, keys)
        yield b"u"


def _tensor(array: np.ndarray, key: str) -> Iterator[bytes]:
    storage = f"ctorch\n{STORAGE_OF[array.dtype.name]}\n".encode()
    place = (_scalar("storage"), storage, _scalar(key), _scalar("cpu"), _scalar(array.size))
    steps = [*accumulate(array.shape[:0:-1], mul, initial=1)][::-1] if array.ndim else []
    yield from (REBUILD, b"((", *place, b"tQ", _scalar(0), _numbers(array.shape), _numbers(steps))
    yield from (_scalar(False), NO_HOOKS, b"tR")


def _numbers(values: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(_scalar, values)) + b"t"


def _scalar(value: Any) -> bytes:
    """The operation that pushes a string, a number, a truth value or None."""
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return b"X" + struct.pack("<I", len(text)) + text
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    number: bytes = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(number)]) + number
