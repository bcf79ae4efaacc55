"""The arrays and the ranks' files in the manifest of a checkpoint, as JSON: each array once, and
for each file the ranges of arrays in it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nnmpi.addons.checkpoints.forms import (
    FileForm,
    ManifestForm,
    RangeForm,
    TensorForm,
)
from nnmpi.addons.checkpoints.rank_file import RankFile, laid_out
from nnmpi.addons.checkpoints.schema import refused
from nnmpi.nn.place import Place, StateArray
from nnmpi.optim.state import split
from nnmpi.options.quoting import shown


def files_to_json(files: Sequence[RankFile]) -> dict[str, Any]:
    """Returns the JSON for all files: each array once, and for each file its ranges of arrays in
    order."""
    tensors = dict[str, TensorForm]()
    for x in (x for file in files for x in file.arrays):
        path, state = split(x.name)
        if path not in tensors or tensors[path][1:3] != (x.place.shape, x.axes):
            path, state = x.name, ""
        form = tensors.setdefault(path, TensorForm(path, x.place.shape, x.axes, {}))
        form.dtypes[state] = x.dtype
    arrays = [*tensors.values()]
    numbers = {x.name: i for i, x in enumerate(_arrays(arrays))}

    def row(x: StateArray) -> int | RangeForm:
        number = numbers[x.name]
        return number if x.is_whole else RangeForm(number, x.place.part, x.lo, x.hi)

    forms = (FileForm(f.name, f.size, f.sha256, tuple(map(row, f.arrays))) for f in files)
    return {"arrays": arrays, "files": [*map(vars, forms)]}


def _arrays(tensors: Iterable[TensorForm]) -> Iterator[StateArray]:
    """Yields each tensor, and each array of its optimizer state, on paper."""
    for name, shape, axes, dtypes in tensors:
        for state, dtype in dtypes.items():
            place = Place.of_whole(f"{name}.{state}" if state else name, shape)
            yield StateArray(place, axes, 0, place.size, dtype)


def files_from_json(form: ManifestForm) -> tuple[RankFile, ...]:
    for i, tensor in enumerate(form.arrays):
        if sorted(tensor.axes) != [*range(len(tensor.shape))]:
            axes = f"{tensor.axes}, not an order of the axes of shape {tensor.shape}"
            raise refused(f"manifest.arrays[{i}].axes", axes)
    arrays = [*_arrays(form.arrays)]
    return tuple(_file(rank, file, arrays) for rank, file in enumerate(form.files))


def _file(rank: int, form: FileForm, arrays: Sequence[StateArray]) -> RankFile:
    """Returns a rank's file by its entry; raises DamagedError for a wrong one."""
    field = f"manifest.files[{rank}]"
    ranges = (_array(arrays, row, f"{field}.ranges[{i}]") for i, row in enumerate(form.ranges))
    file = laid_out(rank, [*ranges])
    if form.name != file.name:
        raise refused(f"{field}.name", f"{shown(form.name)}, not {file.name}")
    if form.bytes != file.size:
        raise refused(f"{field}.bytes", f"{form.bytes:,}, but its arrays take {file.size:,}")
    return file._replace(sha256=form.sha256)


def _array(arrays: Sequence[StateArray], row: int | RangeForm, field: str) -> StateArray:
    """Returns the array of an entry `row` of a rank's file: number `row` of `arrays`, or the range
    of a RangeForm. Raises DamagedError, with the entry's path `field`, if there is none."""
    number = row if isinstance(row, int) else row.array
    if number >= len(arrays):
        raise refused(f"{field}.array", f"{number:,}, but there are {len(arrays):,} arrays")
    array = arrays[number]
    if isinstance(row, int):
        return array
    _, part, lo, hi = row
    place = array.place._replace(part=part)
    try:
        place.check()
    except ValueError as error:
        raise refused(f"{field}.part", f"not a part: {shown(error)}") from None
    if not lo <= hi <= place.size:
        numbers = f"{lo:,} to {hi:,}, not within the {place.size:,} elements of a part"
        raise refused(field, f"{numbers} of {array.name}")
    return array._replace(place=place, lo=lo, hi=hi)
