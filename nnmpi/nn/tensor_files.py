"""Tensors in safetensors files, also in the shards that an index lists. An add-on reads PyTorch's.

    file     8 bytes  length of the header, little-endian
             header   {"__metadata__": {key: text}, name: {dtype, shape, data_offsets}}
             data     tensors in C order and little-endian
    index    {"weight_map": {name: a file beside the index}}

The library checks headers, but cannot read bfloat16 without ml_dtypes: elements are read here.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from safetensors import SafetensorError, safe_open

from nnmpi.addons import Table
from nnmpi.arrays.dtypes import has_bfloat16
from nnmpi.nn.place import Place
from nnmpi.nn.state import AS_IS, FileFormat, StorageOrder
from nnmpi.options.quoting import quoted, shown
from nnmpi.options.user_files import read_json

STATE_FILES: Table[Any] = Table("state_files")
"""By a kind of state or file: the module or function that reads or writes it."""

TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
"""The name in the file format of each NumPy type."""

READ = {kind: name for name, kind in TYPES.items()} | {"C64": "complex64"}
"""The NumPy type of each name that is read."""

INDEX = ".safetensors.index.json"
"""The suffix of the name of an index."""

REMEDY = "take an intact copy of the index and of its shards"
BLOCK = 1 << 20  # elements that are compared at once


class FileTensor(Protocol):
    """A tensor in a file, with the name, the shape and the order of elements that it has there."""

    @property
    def file(self) -> Path: ...
    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def read(self, part: tuple[slice, ...] = ()) -> np.ndarray:
        """Returns a copy of the tensor, or only of a part of it, in C order."""


class RawTensor(NamedTuple):
    """A tensor in a safetensors file, as it is stored there: `kind` is the name of its type in the
    file, and its elements start at byte `begin`."""

    file: Path
    name: str
    kind: str
    shape: tuple[int, ...]
    begin: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the result of `read`; for bfloat16 without ml_dtypes float32, which
        represents every bfloat16 value exactly."""
        if self.kind not in READ:
            raise ValueError(
                f"{shown(self.name)} in {shown(self.file)} has type {shown(self.kind)}, which "
                "NumPy lacks; save it as float32"
            )
        is_widened = self.kind == "BF16" and not has_bfloat16()
        return np.dtype("float32" if is_widened else READ[self.kind])

    def read(self, part: tuple[slice, ...] = ()) -> np.ndarray:
        """Reads the tensor, or only a part of it, in C order."""
        dtype = self.dtype
        with refused(self.file):
            if self.kind != "BF16":
                return self._numbers(dtype, part)
            words = self._numbers(np.dtype("uint16"), part)
        if dtype.name == "bfloat16":
            return words.view(dtype)
        return np.asarray(np.left_shift(words, 16, dtype="uint32").view("float32"))

    def _numbers(self, dtype: np.dtype[Any], part: tuple[slice, ...]) -> np.ndarray:
        """Reads the slice `part` of the tensor from the file, as elements of type `dtype`."""
        if 0 in self.shape:  # memory of length 0 cannot be mapped
            return np.zeros(self.shape, dtype)[part]
        file = np.memmap(self.file, dtype.newbyteorder("<"), "r", self.begin, self.shape)
        return np.array(file[part], dtype, order="C")


class StoredTensor(NamedTuple):
    """A tensor of a model that is in a file. The file may store it in another order, or as several
    tensors (`stored`); `shape` and `read` give it as in the model."""

    stored: tuple[FileTensor, ...]
    order: StorageOrder

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor in the model, which may differ from that in the file."""
        return self.order.shape([raw.shape for raw in self.stored])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the result of `read`."""
        return self.stored[0].dtype

    def read(self, place: Place) -> np.ndarray:
        """Reads the part at `place`; of the whole tensor, if the file has another order."""
        if self.order == AS_IS:
            return self.stored[0].read(place.slices)
        return self.order.to_model([raw.read() for raw in self.stored])[place.slices]


class Contents(NamedTuple):
    """The contents of a file: its tensors by name, and its metadata."""

    tensors: Mapping[str, FileTensor]
    metadata: dict[str, str]


def contents(file: Path) -> Contents:
    """Returns the tensors and the metadata of a file; of a safetensors file only the header is
    read. Raises ValueError for any other file, and for an incomplete one."""
    if is_pickle(file):
        return Contents(STATE_FILES.needed("tensors")(file), {})
    with refused(file):
        with safe_open(file, framework="numpy"):  # checks the header
            pass
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(length))
    metadata = header.pop("__metadata__", None) or {}
    return Contents(
        {
            name: RawTensor(
                file,
                name,
                entry["dtype"],
                tuple(entry["shape"]),
                8 + length + entry["data_offsets"][0],
            )
            for name, entry in header.items()
        },
        metadata,
    )


@contextmanager
def refused(file: Path) -> Iterator[None]:
    """A context in which failures to read become a ValueError with one line."""
    cannot = f"cannot load {shown(file)}"
    if os.path.isdir(file):
        raise ValueError(f"{cannot}: it is a directory; name a file in it")
    if not os.path.isfile(file):  # not file.is_file(), which raises for a name that is too long
        wrong = "not a regular file" if os.path.lexists(file) else "no such file; name another"
        raise ValueError(f"{cannot}: {wrong}")
    try:
        yield
    except (SafetensorError, OSError, ValueError) as error:
        reason = shown(" ".join(str(error).split()))
        raise ValueError(
            f"{cannot}: not a complete safetensors file ({reason}); save or copy it again, or name "
            "another file"
        ) from None


def is_pickle(file: Path) -> bool:
    """True if the file is a pickle, or a zip archive with a pickle, as PyTorch writes it."""
    if not os.path.isfile(file):  # a pipe would block
        return False
    with suppress(OSError), file.open("rb") as opened:
        head = opened.read(1024)
        is_old = head[:1] == b"\x80" and head[8:9] != b"{"  # safetensors have the header there
        return is_old or (head[:2] == b"PK" and b"data.pkl" in head)
    return False


def metadata_of(path: Path) -> dict[str, str]:
    """The metadata of a file; empty for an index and for a file of PyTorch."""
    return {} if is_index(path) or is_pickle(path) else contents(path).metadata


def is_index(path: Path) -> bool:
    """True if the name of the file is that of an index, which lists shards."""
    return path.name.endswith(INDEX)


def stored_in(path: Path) -> Mapping[str, FileTensor]:
    """Returns the tensors of a file, or of an index's shards; reads only headers."""
    if not is_index(path):
        return contents(path).tensors
    listed = shards(path)
    headers = {file: contents(file).tensors for file in dict.fromkeys(listed.values())}
    for name, file in listed.items():
        if name not in headers[file]:
            raise ValueError(
                f"{shown(path)} lists {shown(name)} in {shown(file.name)}, which does not have it; "
                f"{REMEDY}"
            )
    return {name: headers[file][name] for name, file in listed.items()}


def sources_in(path: Path, form: FileFormat) -> dict[str, StoredTensor]:
    """Returns the tensors of a file or shards by path; `form` maps names to paths."""
    stored, order = stored_in(path), form.order
    return {
        tensor_path: StoredTensor(tuple(stored[name] for name in names), order(tensor_path))
        for tensor_path, names in form.names_by_path(stored).items()
    }


def check_tied(path: Path, form: FileFormat) -> None:
    """Raises ValueError if a file has one tensor under two names with different values."""
    stored = stored_in(path)
    for first, other in form.tied(stored):
        _check_equal(stored[first], stored[other])


def files_of(path: Path) -> list[Path]:
    """Returns the files with the tensors: `path` itself or, if it is an index, its shards."""
    return [*dict.fromkeys(shards(path).values())] if is_index(path) else [path]


def shards(index: Path) -> dict[str, Path]:
    """Returns each tensor's file from an index, whose files must lie in its folder."""
    content = read_json(index, REMEDY)
    listed = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise ValueError(f"{shown(index)} has no weight_map with the file of each tensor; {REMEDY}")
    for name, file in listed.items():
        if not isinstance(file, str) or file in ("", ".", "..") or file != os.path.basename(file):
            raise ValueError(
                f"{shown(index)} lists {shown(name)} in {quoted(file)}, which is not the name of a "
                f"file beside it; {REMEDY}"
            )
    return {name: index.with_name(file) for name, file in listed.items()}


def _check_equal(a: FileTensor, b: FileTensor) -> None:
    """Raises ValueError unless two tensors are equal; compares them block by block."""
    rows = max(BLOCK // max(np.prod(a.shape[1:], dtype=int), 1), 1)
    blocks = [(slice(i, i + rows),) for i in range(0, a.shape[0] if a.shape else 0, rows)]
    if a.shape != b.shape or not all(np.array_equal(a.read(i), b.read(i)) for i in blocks):
        raise ValueError(
            f"cannot load {shown(b.file)}: {b.name} differs from {a.name}, and the model has one "
            f"weight for both; leave {b.name} out of the file if {a.name} is meant for both"
        )
