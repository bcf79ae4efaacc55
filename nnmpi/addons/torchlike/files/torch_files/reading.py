"""Reads files of `torch.save`: tensors, dictionaries, lists, tuples, numbers and strings.

    since 1.6   a zip archive without compression: NAME/data.pkl, and NAME/data/KEY for each storage
    before      pickles, one behind the other: a number, the version, the system, the value, the
                keys of the storages; then for each storage its length, and its elements

A tensor is a view of a storage, which several tensors may share; so may those read here.
"""

import mmap
import os
import struct
import sys
import zipfile
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons.torchlike.files.torch_files.unpickle import (
    RefusedPickleError,
    Unpickler,
    plain_key,
)
from nnmpi.arrays.dtypes import TYPES, has_bfloat16
from nnmpi.autograd import Tensor
from nnmpi.options.quoting import shown

STORAGES = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "Untyped": "uint8",
}
"""The types of elements, by PyTorch's names of storages."""

OTHERS = ("uint16", "uint32", "uint64", "bfloat16")
"""Types of tensors for which PyTorch has no storage class."""

MOST_ITEMS = 64
"""The most items of an argument of a call in a pickle, which has other ways for more."""

MAGIC = 0x1950A86A20F9469CFC6C
"""The number at the start of files of PyTorch before 1.6."""


class Kind(NamedTuple):
    """The type of a storage's elements, in place of a storage class or dtype of PyTorch."""

    dtype: str


class Storage(NamedTuple):
    """A storage of PyTorch, the flat memory of one or several tensors: its bytes, in the byte order
    of this machine, and the type of its elements."""

    data: np.ndarray
    dtype: str


def _tensor(
    storage: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    requires_grad: Any = False,
    hooks: Any = None,
    metadata: Any = None,
) -> np.ndarray:
    """Returns a tensor as an array, a view of its storage; offset, shape and strides count
    elements. `requires_grad` and `hooks` are ignored.

    Raises ValueError unless the storage has all of these elements, or if there is `metadata`: then
    the tensor is a negated or conjugated view.
    """
    numbers = (offset, *_items(shape), *_items(strides))
    if not all(type(n) is int and n >= 0 for n in numbers) or not isinstance(storage, Storage):
        raise ValueError("a tensor whose shape and strides are no numbers of at least 0")
    if metadata:
        raise RefusedPickleError("a negated or conjugated view of a tensor")
    is_bfloat16 = storage.dtype == "bfloat16"
    dtype = np.dtype("uint16" if is_bfloat16 else storage.dtype)
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    here = len(storage.data) // dtype.itemsize
    if 0 in shape:
        array = np.zeros(shape, dtype)
    elif last >= here:
        raise ValueError(f"a tensor of {last + 1:,} elements in a storage of {here:,}")
    else:
        array = storage.data[: here * dtype.itemsize].view(dtype)[offset:]
    if is_bfloat16 and has_bfloat16():
        array = array.view("bfloat16")
    elif is_bfloat16:
        array = np.left_shift(array, 16, dtype="uint32").view("float32")
    if 0 in shape:
        return array
    sizes = [step * array.itemsize for step in strides]
    return np.lib.stride_tricks.as_strided(array, shape, sizes)


def _tensor_of_type(*given: Any) -> np.ndarray:
    """Returns a tensor of a type for which PyTorch has no storage class, such as unsigned integers.
    The pickle calls it with (storage, offset, shape, strides, ..., type)."""
    storage, *view, _, _, kind = given[:7]
    name = kind.dtype if isinstance(kind, Kind) else np.dtype(kind).name
    return _tensor(storage._replace(dtype=name), *view)


def _parameter(tensor: Any, *about: Any) -> Any:
    return tensor


def _items(value: Any) -> Any:
    """Returns `value` if it is a tuple or list of few items; raises ValueError otherwise. A small
    pickle could otherwise pass a large array or text to a function, many times."""
    if type(value) not in (tuple, list):
        raise ValueError(f"a {type(value).__name__} in the place of a tuple or a list")
    if len(value) > MOST_ITEMS:
        raise ValueError(f"{len(value):,} items in the place of at most {MOST_ITEMS}")
    return value


def _sizes(sizes: Any) -> tuple[Any, ...]:
    return tuple(_items(sizes))


def _device(kind: Any, index: Any = 0) -> str:
    if type(kind) is not str:
        raise ValueError(f"a device that is a {type(kind).__name__}")
    return f"{kind}:{index}" if type(index) is int and kind != "cpu" else kind


def _dictionary(items: Any = ()) -> dict[Any, Any]:
    pairs = [*items.items()] if type(items) is dict else items
    return {plain_key(key): value for key, value in _items(pairs)}


def _set(items: Any) -> set[Any]:
    return {*map(plain_key, _items(items))}


NAMES: Mapping[str, Any] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_of_type,
    "torch._utils._rebuild_parameter": _parameter,
    "torch.Size": _sizes,
    "torch.device": _device,
    "torch.storage.UntypedStorage": Kind("uint8"),
    **{f"torch.{name}Storage": Kind(dtype) for name, dtype in STORAGES.items()},
    **{f"torch.{name}": Kind(name) for name in OTHERS},
    **{f"torch.{name}": kind for name, kind in TYPES.items()},
    **dict.fromkeys(("collections.OrderedDict", "collections.Counter"), _dictionary),
    **dict.fromkeys(("__builtin__.set", "builtins.set"), _set),
}
"""The names that pickles may use, with the function to call or the type in place of PyTorch's."""


def _with_tensors(make: Callable[[np.ndarray, bool], Tensor]) -> dict[str, Any]:
    """Returns NAMES with tensors, made by make(array, requires_grad), in place of arrays."""

    def made(rebuild: Callable[..., np.ndarray]) -> Callable[..., Tensor]:
        return lambda *given: make(rebuild(*given), len(given) > 4 and given[4] is True)

    def parameter(tensor: Any, requires_grad: Any, *about: Any) -> Tensor:
        if not isinstance(tensor, Tensor):
            raise ValueError(f"a parameter that is a {type(tensor).__name__}")
        return tensor.detach().requires_grad_(requires_grad is True)

    tensors = {n: made(f) for n, f in NAMES.items() if f in (_tensor, _tensor_of_type)}
    return {**NAMES, **tensors, "torch._utils._rebuild_parameter": parameter}


class _Archive:
    """Reads a file of PyTorch since 1.6, a zip archive: its value, and each storage once."""

    def __init__(self, archive: zipfile.ZipFile, size: int, names: Mapping[str, Any]) -> None:
        self._archive, self._storages = archive, dict[str, np.ndarray]()
        self._unpickler = Unpickler(names, self._storage)
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("a compressed archive, which torch.save does not write")
        if sum(entry.file_size for entry in entries) > size:
            raise ValueError("an archive that claims to have more bytes than the file")
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError(f"an archive with {len(pickles)} entries data.pkl, and not one")
        self._folder = pickles[0].removesuffix("data.pkl")
        order = f"{self._folder}byteorder"
        is_there = order in archive.namelist()
        self._is_swapped = is_there and archive.read(order).decode() != sys.byteorder

    def value(self) -> Any:
        """Returns the value that the file contains."""
        pickled = BytesIO(self._archive.read(f"{self._folder}data.pkl"))
        return self._unpickler.load(pickled)

    def _storage(self, named: Any) -> Storage:
        kind, key, _ = _parts(named)
        if key not in self._storages:
            content = self._archive.read(f"{self._folder}data/{key}")
            self._storages[key] = _in_order(np.frombuffer(content, "uint8"), kind, self._is_swapped)
        return Storage(self._storages[key], kind)


class _Legacy:
    """Reads files of PyTorch before 1.6, with storages after the pickled value."""

    def __init__(self, content: mmap.mmap, names: Mapping[str, Any]) -> None:
        self._content, self._storages = content, dict[str, Storage]()
        self._unpickler = Unpickler(names, self._storage)
        self._left = len(content)

    def value(self) -> Any:
        """Returns the value that the file contains."""
        unpickler = self._unpickler
        magic, _, system = (unpickler.load(self._content) for _ in range(3))
        if magic != MAGIC:
            raise RefusedPickleError("a pickle that torch.save has not written")
        is_little = system["little_endian"]
        is_swapped = is_little != (sys.byteorder == "little")
        begin = self._content.tell()
        unpickler.load(self._content)  # which makes storages of zeros
        keys = unpickler.load(self._content)
        for key in keys:
            data, kind = self._storages[key]
            length = int.from_bytes(self._content.read(8), "little" if is_little else "big")
            read = self._content.read(len(data))
            if length * np.dtype(_stored(kind)).itemsize != len(data) or len(read) != len(data):
                raise ValueError(f"a storage of {length:,} elements, which is not complete")
            data[:] = _in_order(np.frombuffer(read, "uint8"), kind, is_swapped)
        self._content.seek(begin)
        return unpickler.load(self._content)

    def _storage(self, named: Any) -> Storage:
        kind, key, length = _parts(named)
        if named[5:] not in ((), (None,)):
            raise RefusedPickleError("a view of a storage")
        if key not in self._storages:
            size = length * np.dtype(_stored(kind)).itemsize
            self._left -= size
            if self._left < 0:
                raise ValueError("storages that are larger than the file")
            self._storages[key] = Storage(np.zeros(size, "uint8"), kind)
        return self._storages[key]


def _parts(named: Any) -> tuple[str, str, int]:
    """Returns (type of the elements, key, number of elements) of a storage from `named`, the
    persistent id by which a pickle refers to it. Raises an error for an id of anything else."""
    word, kind, key, _, length = named[:5]
    if (
        type(word) is not str
        or word != "storage"
        or not isinstance(kind, Kind)
        or not isinstance(key, str)
    ):
        raise RefusedPickleError("an object that lies elsewhere, and is no storage")
    if type(length) is not int or length < 0:
        raise ValueError("a storage whose length is no number of at least 0")
    return kind.dtype, key, length


def _stored(kind: str) -> str:
    return "uint16" if kind == "bfloat16" else kind


def _in_order(data: np.ndarray, kind: str, is_swapped: bool) -> np.ndarray:
    """Returns a copy of a storage's bytes `data` in the byte order of this machine. `is_swapped` is
    True if the file has the other byte order; `kind` is the type of the elements."""
    if not is_swapped:
        return data.copy()
    return data.view(_stored(kind)).byteswap().view("uint8")


def read(
    path: str | os.PathLike[str], make: Callable[[np.ndarray, bool], Tensor] | None = None
) -> Any:
    """Returns the value in a file of `torch.save`, with arrays on the host in place of tensors, or
    with tensors that make(array, requires_grad) returns. It may consist of dictionaries, lists,
    tuples, sets, numbers, strings and types. Raises ValueError for other objects, and never runs
    code of the file."""
    cannot, names = f"cannot load {shown(path)}", NAMES if make is None else _with_tensors(make)
    try:
        with open(path, "rb") as file:
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    return _Archive(archive, os.path.getsize(path), names).value()
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Legacy(content, names).value()
    except RefusedPickleError as error:
        raise ValueError(
            f"{cannot}: it has {error}, and nnmpi reads tensors, dictionaries, lists, tuples, "
            "numbers and strings, and runs no code of a file: save model.state_dict() in PyTorch, "
            "not the model or another object"
        ) from None
    except DAMAGED as error:
        reason = shown(" ".join(str(error).split()) or type(error).__name__)
        raise ValueError(
            f"{cannot}: not a complete file of torch.save ({reason}); take an intact copy"
        ) from None


DAMAGED = (
    *(OSError, EOFError, MemoryError, ValueError, TypeError),
    *(LookupError, AttributeError, ArithmeticError),
    *(zipfile.BadZipFile, NotImplementedError, RuntimeError, struct.error),
)
"""The errors that zipfile, NumPy and this module raise for damaged files."""
