"""Writes state dictionaries to safetensors files, with PyTorch's names and shapes."""

import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nnmpi.arrays.dtypes import named
from nnmpi.autograd import on_host
from nnmpi.io.files.atomic import NotSavedError as NotSavedError
from nnmpi.io.files.atomic import check_target, refusing, replaced
from nnmpi.io.files.model_files import model_file
from nnmpi.nn.state import PLAIN, FileFormat
from nnmpi.nn.tensor_files import STATE_FILES, TYPES
from nnmpi.options.quoting import shown

if TYPE_CHECKING:
    from nnmpi.parallel.model.whole import WholeArrays

PARAMETERS = "parameters_sha256"
"""The metadata key of the digest of a run's parameters, which is also in its last event."""

STRUCTURE = "nnmpi_structure"
"""The metadata key for the structure of a state that is not a plain dictionary of arrays."""

OF_STATE = {PARAMETERS, STRUCTURE}
"""Metadata keys that describe the tensors of one file, and are not copied to another."""

WRITE = "nnmpi.save(model.state_dict(), path)"

FILE = "file_sha256"
"""The metadata key of the digest of header and tensors, with zeros in the digest's place."""

OF_TORCH = (".pt", ".pth", ".pth.tar")
"""The ends of the names of PyTorch's files."""

BLANK = "0" * 64
BLOCK = 1 << 20  # bytes that are read at once


class HeaderRow(NamedTuple):
    """A tensor's entry in the header of a safetensors file: its name, type and shape."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def save(
    state: Any,
    path: str | os.PathLike[str] | IO[bytes],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a state dictionary to a file, atomically: after a failure an old file is unchanged.

    A file called .pt, .pth or .pth.tar is one of PyTorch, which `torch.load` reads; all others are
    safetensors. `path` may also be an open file, such as io.BytesIO. The state may also be an
    array, or a nested dict, list or tuple of numbers, strings and arrays, which `load` returns with
    tensors in the place of arrays. `metadata` may be that of another file; digests in it are
    replaced or left out.

    A run of a Trainer writes this metadata:

        mean, std           JSON lists: the mean and deviation by which samples were standardised,
                            one number per feature, or per channel as (C, 1, 1) or (C, 1); null for
                            indices; for several inputs an object of these, with the keys "0", "1"
                            for a tuple. Those of uint8 images are for values from 0 to 255
        model, data         the options of these names
        parameters_sha256   the digest of all parameters, equal to that of the run's last event
        file_sha256         the digest of the file, computed with 64 zeros in place of this digest;
                            `load` refuses a file whose bytes do not match it

    A program that changes a file and keeps its metadata leaves out both digests.
    """
    if hasattr(path, "write"):
        STATE_FILES.needed("streams").save(state, path, metadata)
        return
    _check_given(state, path)
    if Path(path).name.endswith(OF_TORCH):
        _check_no_metadata(path, metadata)
        STATE_FILES.needed("torch")(state, path)
        return
    kept = {key: text for key, text in (metadata or {}).items() if key not in OF_STATE}
    for key, text in kept.items():
        if not (isinstance(key, str) and isinstance(text, str)):
            raise TypeError(
                f"metadata {key!r:.60} is of type {type(text).__name__}; give strings only, "
                "json.dumps makes them"
            )
    is_plain = isinstance(state, Mapping) and all(map(is_array, state.values()))
    if is_plain and all(isinstance(name, str) for name in state):
        arrays = {name: np.asarray(on_host(a)) for name, a in state.items()}
    else:
        arrays, kept[STRUCTURE] = STATE_FILES.needed("nested").flattened(state, path)
    index = [HeaderRow(name, a.dtype, a.shape) for name, a in arrays.items()]
    write(path, index, arrays.values(), kept, {})


def _check_no_metadata(path: Any, metadata: Mapping[str, str] | None) -> None:
    if metadata:
        better = shown(Path(path).with_suffix(".safetensors").name)
        raise ValueError(f"files of PyTorch, as {shown(path)}, have no metadata: name it {better}")


def _check_given(state: Any, path: Any) -> None:
    """Raises an error, with a remedy, for a wrong `state` or `path`."""
    if not (isinstance(state, Mapping | list | tuple) or is_array(state)):
        kind = type(state).__name__
        raise NotSavedError(
            f"cannot save {shown(path, 60)}: a {kind} is not a state dictionary; write {WRITE}"
        )
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"save: the path is of type {type(path).__name__}; write {WRITE}")


def is_array(value: Any) -> bool:
    """Returns True for tensors, for arrays of any backend, and for NumPy's scalars."""
    return hasattr(value, "dtype") and hasattr(value, "ndim")


def write_whole(
    path: str | None,
    arrays: "WholeArrays",
    metadata: Mapping[str, str],
    sizes: tuple[Any, ...] | None,
    model: str,
) -> str:
    """Writes a whole model, which may be divided among ranks, to one file, and returns its name.
    Every rank calls it: one is given a `path` and writes, the others send it their parts.

    If writing fails, the writer still receives what the others send, so that they do not wait for
    ever. `sizes` are those of a GPT or Llama, else None, and `model` is the model's name.
    """
    digest, file = hashlib.sha256(), ""
    form: FileFormat = PLAIN

    def values() -> Iterator[np.ndarray]:
        for name, array in arrays:
            if name in arrays.digested:
                digest.update(array.tobytes())
            yield from form.arrays(name, array).values()

    written = values()
    try:
        if path:
            target = model_file(path)
            target.check_model(sizes, model)
            with target.prepared(sizes, metadata) as (file, form, about):
                index = [
                    HeaderRow(name, named(x.dtype), part)
                    for x in arrays.arrays
                    for name, part in form.shapes(x.name, x.place.shape).items()
                ]
                write(file, index, written, about, {PARAMETERS: digest.hexdigest})
    finally:
        if not arrays.writer_has_all:  # receive what others still send, else they would hang
            for _ in written:
                pass
    return file


def write(
    path: str | os.PathLike[str],
    index: Sequence[HeaderRow],
    arrays: Iterable[np.ndarray],
    metadata: Mapping[str, str],
    digests: Mapping[str, Callable[[], str]],
) -> None:
    """Writes a safetensors file of tensors that are produced one by one, which the library's writer
    cannot: `index` has names, types and shapes, `arrays` yields them in this order.

        8 bytes   length of the header, little-endian
        header    JSON: {"__metadata__": {key: text}, name: {dtype, shape, data_offsets}},
                  padded with spaces
        data      tensors in C order and little-endian, the widest types first for alignment

    `digests` maps metadata keys to functions that return the digest when all tensors are written.
    """
    path = Path(path)
    check_target(path)
    if path.suffix in (".pt", ".pth"):
        better = shown(path.with_suffix(".safetensors").name)
        text = f"{shown(path)} is written as safetensors, which torch.load cannot read: name it "
        warnings.warn(text + better, stacklevel=3)
    blank = dict.fromkeys((*digests, FILE), BLANK)
    header, starts = header_of(path, index, {**metadata, **blank})
    with refusing(path), replaced(path, "x+b") as file:
        file.write(header)
        for start, array in zip(starts, arrays, strict=True):
            file.seek(start)
            file.write(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        for key, digest in digests.items():
            _fill_in(file, place_of(header, key), digest())
        place = place_of(header, FILE)  # last: the digest of the file covers the other digests
        _fill_in(file, place, file_sha256(file, place))


def place_of(header: bytes, key: str) -> int:
    """Returns where in the header the digest that the metadata have under `key` begins, or -1.
    "key": "digest" matches inside no other text, where quotes are escaped."""
    match = re.search(rb'"%b"\s*:\s*"[0-9a-f]{64}"' % key.encode(), header)
    return match.end() - 1 - len(BLANK) if match else -1


def file_sha256(file: IO[bytes], place: int) -> str:
    """Returns the SHA-256 of a file with zeros at `place`, where it will be stored."""
    file.seek(0)
    digest = hashlib.sha256(file.read(place) + BLANK.encode())
    file.seek(place + len(BLANK))
    while block := file.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()


def _fill_in(file: IO[bytes], place: int, text: str) -> None:
    file.seek(place)
    file.write(text.encode())


def header_of(
    path: Path, index: Sequence[HeaderRow], metadata: Mapping[str, str]
) -> tuple[bytes, list[int]]:
    """Returns the bytes of a safetensors file before the tensors' data, and the offset in the file
    of each tensor, in the order of `index`."""
    header: dict[str, dict[str, Any]] = {}
    end = 0
    for name, dtype, shape in sorted(index, key=lambda info: -info.dtype.itemsize):
        kind = TYPES.get(dtype.name)  # once: NumPy builds the name on each access
        if kind is None:
            raise NotSavedError(
                f"cannot save {shown(path)}: {name} has type {dtype}; convert it to one of "
                f"{', '.join(TYPES)}"
            )
        start, end = end, end + math.prod(shape) * dtype.itemsize
        offsets = [start, end]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": offsets}
    header_of_file = {"__metadata__": metadata, **header}
    text = json.dumps(header_of_file, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    first = 8 + len(text)
    starts = [first + header[info.name]["data_offsets"][0] for info in index]
    return len(text).to_bytes(8, "little") + text, starts
