"""State dictionaries from safetensors files, those of PyTorch included."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Place, whole
from nnmpi.nn.state import assign, check_state
from nnmpi.nn.stored import AS_IS, Order
from nnmpi.parallel.model.parts import everything, which_held
from nnmpi.run.files.folders import form_of, weights_of
from nnmpi.run.files.saving import BLANK, FILE, PARAMETERS, Info, file_sha256, place_of

Arrays = dict[str, np.ndarray]


class Source(NamedTuple):
    """A tensor in a file: its name there, and how its numbers are ordered."""

    name: str
    order: Order


class Loaded(NamedTuple):
    """What a model has taken from a file, and what does not fit: names in the file or the model.

    other_shapes   the shapes in the file and in the model
    """

    file: str
    loaded: list[str]
    missing: list[str]
    other_shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    left_over: list[str]

    @classmethod
    def of(
        cls,
        file: str,
        names: Sequence[str],
        infos: Mapping[str, Info],
        places: Sequence[Place],
    ) -> "Loaded":
        here = {place.path: place.shape for place in places}
        both = {name: (infos[name].shape, here[name]) for name in here if name in infos}
        return cls(
            file,
            [name for name, (theirs, ours) in both.items() if theirs == ours],
            [name for name in here if name not in infos],
            {name: shapes for name, shapes in both.items() if shapes[0] != shapes[1]},
            [name for name in names if name not in here],
        )


@overload
def load(path: str | os.PathLike[str], with_metadata: Literal[False] = ...) -> Arrays: ...


@overload
def load(
    path: str | os.PathLike[str], with_metadata: Literal[True]
) -> tuple[Arrays, dict[str, str]]: ...


def load(
    path: str | os.PathLike[str], with_metadata: bool = False
) -> Arrays | tuple[Arrays, dict[str, str]]:
    """Read a state dictionary from a safetensors file, `with_metadata` also its metadata."""
    with _refused(path):
        check_digest(path)
        state = load_file(path)
    return (state, read_metadata(path)) if with_metadata else state


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a file, or of that in a folder; a file that has none has an empty dict."""
    path = weights_of(os.fspath(path))
    with _refused(path), safe_open(path, framework="numpy") as file:
        return dict(file.metadata() or {})


def shapes(path: str | os.PathLike[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of a file, by their names there."""
    with _refused(path), safe_open(path, framework="numpy") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def check_digest(path: str | os.PathLike[str]) -> None:
    """Raises ValueError if a file has changed since nnmpi saved it.

    Files of other programs have no digest. The whole file is read, in pieces.
    """
    path = weights_of(os.fspath(path))
    metadata = read_metadata(path)
    if FILE not in metadata:
        if PARAMETERS in metadata:  # written only beside the other, whose name has changed
            raise ValueError(
                f"cannot load {path}: it is damaged, or was changed after it was saved: its "
                f"metadata have {PARAMETERS} and no {FILE}; take an intact copy, or, if you "
                "changed it, remove both from its metadata"
            )
        return
    with _refused(path), open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        file.seek(0)
        header = file.read(8 + length)
        place = place_of(header, FILE)
        said = header[place : place + len(BLANK)].decode() if place > 0 else "not a digest"
        found = file_sha256(file, place) if place > 0 else ""
    if said != found:
        raise ValueError(
            f"cannot load {path}: it is damaged, or was changed after it was saved: its SHA-256 is "
            f"{found:.12}..., and its metadata say {said:.12}...; take an intact copy, or, if you "
            f"changed it, remove {FILE} from its metadata"
        )


def load_into(
    path: str | os.PathLike[str],
    model: Module,
    held: Callable[[str], bool] = everything,
    partial: bool = False,
) -> Loaded:
    """Copy the tensors of a file that this rank holds into a model, one at a time.

    All names, shapes and types are checked first, as `load` and `load_state_dict` do; with
    `partial`, names and shapes need not fit. Then only what is here is read: of a tensor of which
    this rank has a part, that part.
    """
    tensors, (file, sources) = list(model.tensors()), _sources(path)
    loaded = _checked(path, sources, [place for place, _ in tensors], partial)
    both, fits = zip(tensors, which_held(tensors, held), strict=True), {*loaded.loaded}
    here = [
        (place, target)
        for (place, target), is_held in both
        if is_held and place.size and place.path in fits
    ]
    for value, (place, target) in zip(_parts(file, sources, here), here, strict=True):
        if isinstance(target, Parameter):
            _check_finite(f"--load {path}: {place.path}", value, target.dtype)
        assign(target, value)
        if isinstance(target, Parameter):
            target.seed = None
    return loaded


def _check_finite(what: str, value: np.ndarray, dtype: Any) -> None:
    """Raises ValueError unless all numbers are finite in this type; needs no memory for it."""
    extremes = np.array([value.min(), value.max()])
    with np.errstate(over="ignore"):
        here = extremes.astype(dtype)
    if not np.isfinite(here).all():
        wrong = extremes[~np.isfinite(here)][0]
        why = f"is too large for {np.dtype(dtype)}" if np.isfinite(wrong) else "is not finite"
        raise ValueError(f"{what} has the number {wrong}, which {why}; load another file")


def _sources(path: str | os.PathLike[str]) -> tuple[str, dict[str, Source]]:
    """The file of --load, which may be in a folder, and its tensors by their paths in the model."""
    form, file = form_of(path), weights_of(os.fspath(path))
    with _refused(file), safe_open(file, framework="numpy") as opened:
        found = form.found(opened.keys()).items()
    return file, {own: Source(name, form.order(own)) for own, name in found}


def _checked(
    path: str | os.PathLike[str],
    sources: Mapping[str, Source],
    places: Sequence[Place],
    partial: bool,
) -> Loaded:
    """What fits; raises ValueError unless all does or, with `partial`, some."""
    file = weights_of(os.fspath(path))
    with _refused(file), safe_open(file, framework="numpy") as opened:
        known = {place.path for place in places} if partial else {*sources}
        infos = {name: _info(opened, name, sources[name]) for name in sources if name in known}
    loaded = Loaded.of(str(path), [*sources], infos, places)
    if partial and loaded.loaded:
        infos = {name: infos[name] for name in loaded.loaded}
        places = [place for place in places if place.path in infos]
    try:
        check_state(infos, infos, places)
    except ValueError as error:
        what = "" if loaded.loaded or not partial else "nothing of it fits the model: "
        remedy = (
            "; in training --load-partial takes what fits" if loaded.loaded and not partial else ""
        )
        raise ValueError(f"--load {path}: {what}{error}{remedy}") from None
    return loaded


def _parts(
    path: str, sources: Mapping[str, Source], here: Iterable[tuple[Place, object]]
) -> Iterator[np.ndarray]:
    """Reads the parts that are here; a tensor in another order is read whole."""
    with _refused(path), safe_open(path, framework="numpy") as file:
        for place, _ in here:
            name, order = sources[place.path]
            if order == AS_IS:
                yield _part(file, place._replace(path=name))
            else:
                yield order.here(np.asarray(file.get_tensor(name)))[place.slices]


def _info(file: Any, path: str, source: Source) -> Info:
    """What the file says of a tensor; the library makes the type with the first number of it."""
    name, order = source
    shape = tuple(file.get_slice(name).get_shape())
    first = whole(shape) if 0 in shape else whole((1,) * len(shape))
    return Info(path, _part(file, Place(name, shape, first)).dtype, order.shape(shape))


def _part(file: Any, place: Place) -> np.ndarray:
    """A part of a tensor; `get_slice` refuses an axis of length 0."""
    if place.part == whole(place.shape):
        return np.asarray(file.get_tensor(place.path))
    return np.asarray(file.get_slice(place.path)[place.slices])


@contextmanager
def _refused(path: str | os.PathLike[str]) -> Iterator[None]:
    """While a file is read: raises ValueError of one line for what it cannot be."""
    path = Path(path)
    if os.path.isdir(path):
        raise ValueError(f"cannot load {path}: it is a directory; name a file in it")
    if not os.path.isfile(path):  # not path.is_file(), which raises for a name that is too long
        wrong = "not a regular file" if os.path.lexists(path) else "no such file"
        raise ValueError(f"cannot load {path}: {wrong}")
    try:
        yield
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(
            f"cannot load {path}: it has a type that NumPy lacks ({error}); "
            "save it as float32, or import ml_dtypes first"
        ) from None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"cannot load {path}: not a complete safetensors file ({error})") from None
