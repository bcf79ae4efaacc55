"""The collectives and messages of `nnmpi.distributed`, with the arguments of torch.distributed.

Tensors are those of nnmpi, arrays of NumPy or CuPy, or tensors shared through DLPack: of PyTorch,
or of JAX if they are only read. Ranks in arguments are numbers in the job, also for a group. With
`async_op` a call returns a handle, and the tensors must not be touched until `wait()` of the handle
has returned.
"""

import pickle
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from nnmpi.addons.torchlike.distributed.group import Group, joined, rows_of, to_read, to_write
from nnmpi.addons.torchlike.distributed.rows import Handle, ReduceOp
from nnmpi.arrays.backend import Array, xp_of

SUM = ReduceOp.SUM


def all_reduce(
    tensor: Any, op: ReduceOp = SUM, group: Group = None, async_op: bool = False
) -> Handle | None:
    """Replaces the tensor on every rank by its reduction over the ranks."""
    row, back = to_write(tensor, "all_reduce")
    return _ended(rows_of(group).all_reduce(row, op).followed_by(back), async_op)


def reduce(
    tensor: Any, dst: int, op: ReduceOp = SUM, group: Group = None, async_op: bool = False
) -> Handle | None:
    """Replaces the tensor on rank `dst` by its reduction over the ranks; others stay unchanged."""
    rows, root = rows_of(group), joined(group).member(dst)
    if rows.comm.rank != root:
        return _ended(rows.reduce(to_read(tensor, "reduce"), root, op), async_op)
    row, back = to_write(tensor, "reduce")
    return _ended(rows.reduce(row, root, op).followed_by(back), async_op)


def broadcast(tensor: Any, src: int, group: Group = None, async_op: bool = False) -> Handle | None:
    """Replaces the tensor on every rank by that of rank `src`."""
    row, back = to_write(tensor, "broadcast")
    handle = rows_of(group).broadcast(row, joined(group).member(src))
    return _ended(handle.followed_by(back), async_op)


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Group = None, async_op: bool = False
) -> Handle | None:
    """Fills `output_tensor` with the `input_tensor` of all ranks, in rank order."""
    rows, row = rows_of(group), to_read(input_tensor, "all_gather_into_tensor")
    gathered, back = to_write(output_tensor, "all_gather_into_tensor")
    _check_fits("all_gather_into_tensor", "output", gathered, row, rows.comm.size)
    return _ended(rows.all_gather(gathered, row).followed_by(back), async_op)


all_gather_single = all_gather_into_tensor  # PyTorch's newer name


def all_gather(
    tensor_list: Sequence[Any], tensor: Any, group: Group = None, async_op: bool = False
) -> Handle | None:
    """Copies the `tensor` of rank i to tensor i of the list, on all ranks; shapes are equal."""
    rows, row = rows_of(group), to_read(tensor, "all_gather")
    outputs = _parts("all_gather", "tensor_list", tensor_list, rows.comm.size, row)
    gathered = xp_of(row).empty(row.size * rows.comm.size, row.dtype)
    handle = rows.all_gather(gathered, row)
    for i, (output, back) in enumerate(outputs):
        part = gathered[i * row.size : (i + 1) * row.size]
        handle.followed_by(partial(_write, output, part)).followed_by(back)
    return _ended(handle, async_op)


def reduce_scatter_tensor(
    output: Any, input: Any, op: ReduceOp = SUM, group: Group = None, async_op: bool = False
) -> Handle | None:
    """Reduces `input` over the ranks; `output` becomes this rank's part of the result."""
    rows, row = rows_of(group), to_read(input, "reduce_scatter_tensor").copy()
    part, back = to_write(output, "reduce_scatter_tensor")
    _check_fits("reduce_scatter_tensor", "input", row, part, rows.comm.size)
    return _ended(rows.reduce_scatter(part, row, op).followed_by(back), async_op)


reduce_scatter_single = reduce_scatter_tensor  # PyTorch's newer name


def reduce_scatter(
    output: Any,
    input_list: Sequence[Any],
    op: ReduceOp = SUM,
    group: Group = None,
    async_op: bool = False,
) -> Handle | None:
    """Reduces tensor i of all ranks' lists over the ranks into `output` of rank i."""
    parts, part = [to_read(t, "reduce_scatter") for t in input_list], to_read(output, "output")
    _check_length("reduce_scatter", "input_list", parts, rows_of(group).comm.size)
    for row in parts:
        _check_fits("reduce_scatter", "a tensor of input_list", row, part)
    return reduce_scatter_tensor(output, xp_of(parts[0]).concatenate(parts), op, group, async_op)


def scatter(
    tensor: Any,
    scatter_list: Sequence[Any] | None = None,
    src: int = 0,
    group: Group = None,
    async_op: bool = False,
) -> Handle | None:
    """Copies tensor i of `scatter_list` on rank `src` to the `tensor` of rank i."""
    rows, root = rows_of(group), joined(group).member(src)
    row, back = to_write(tensor, "scatter")
    given = [to_read(t, "scatter") for t in scatter_list or ()]
    if rows.comm.rank == root:
        _check_length("scatter", "scatter_list", given, rows.comm.size)
        for part in given:
            _check_fits("scatter", "a tensor of scatter_list", part, row)
    return _ended(rows.scatter(row, given, root).followed_by(back), async_op)


def gather(
    tensor: Any,
    gather_list: Sequence[Any] | None = None,
    dst: int = 0,
    group: Group = None,
    async_op: bool = False,
) -> Handle | None:
    """Copies the `tensor` of rank i to tensor i of `gather_list` on rank `dst`."""
    rows, root = rows_of(group), joined(group).member(dst)
    row, outputs = to_read(tensor, "gather"), []
    if rows.comm.rank == root:
        outputs = _parts("gather", "gather_list", gather_list or (), rows.comm.size, row)
    handle = rows.gather([output for output, _ in outputs], row, root)
    for _, back in outputs:
        handle.followed_by(back)
    return _ended(handle, async_op)


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
    async_op: bool = False,
) -> Handle | None:
    """Sends part i of `input` to rank i, and receives part i of `output` from rank i. Parts are
    along the first axis, and have the lengths of the split sizes, by default equal ones."""
    rows, call = rows_of(group), "all_to_all_single"
    row, (target, back) = to_read(input, call), to_write(output, call)
    _check_type(call, "output", target, row)
    sent = _split(call, row, input, input_split_sizes, rows.comm.size)
    received = _split(call, target, output, output_split_sizes, rows.comm.size)
    return _ended(rows.all_to_all(received, sent).followed_by(back), async_op)


def all_to_all(
    output_tensor_list: Sequence[Any],
    input_tensor_list: Sequence[Any],
    group: Group = None,
    async_op: bool = False,
) -> Handle | None:
    """Sends tensor i of a list to rank i, and receives tensor i from rank i."""
    rows, outputs = rows_of(group), [to_write(t, "all_to_all") for t in output_tensor_list]
    inputs = [to_read(t, "all_to_all") for t in input_tensor_list]
    _check_length("all_to_all", "output_tensor_list", outputs, rows.comm.size)
    _check_length("all_to_all", "input_tensor_list", inputs, rows.comm.size)
    for (row, _), sent in zip(outputs, inputs, strict=True):
        _check_type("all_to_all", "a tensor of output_tensor_list", row, sent)
    handle = rows.all_to_all([row for row, _ in outputs], inputs)
    for _, back in outputs:
        handle.followed_by(back)
    return _ended(handle, async_op)


def isend(tensor: Any, dst: int, group: Group = None, tag: int = 0) -> Handle:
    """Starts to send a tensor to rank `dst`; returns a handle."""
    return rows_of(group).send(to_read(tensor, "isend"), joined(group).member(dst), tag)


def irecv(tensor: Any, src: int, group: Group = None, tag: int = 0) -> Handle:
    """Starts to receive from rank `src` into a tensor; returns a handle."""
    row, back = to_write(tensor, "irecv")
    handle = rows_of(group).recv(row, joined(group).member(src), tag)
    return handle.followed_by(back)


def send(tensor: Any, dst: int, group: Group = None, tag: int = 0) -> None:
    """Sends a tensor to rank `dst`."""
    isend(tensor, dst, group, tag).wait()


def recv(tensor: Any, src: int, group: Group = None, tag: int = 0) -> int:
    """Receives from rank `src` into a tensor, and returns `src`."""
    irecv(tensor, src, group, tag).wait()
    return src


def barrier(group: Group = None, async_op: bool = False) -> Handle | None:
    """Returns when every rank of the group has called it."""
    return _ended(rows_of(group).barrier(), async_op)


def all_gather_object(object_list: list[Any], obj: Any, group: Group = None) -> None:
    """Sets object i of the list to a copy of the `obj` of rank i; objects are pickled."""
    rows = rows_of(group)
    _check_length("all_gather_object", "object_list", object_list, rows.comm.size)
    data = np.frombuffer(pickle.dumps(obj), np.uint8)
    sizes = np.zeros(rows.comm.size, np.int64)
    rows.all_gather(sizes, np.array([data.size])).wait()
    pickled = np.empty(sizes.sum(), np.uint8)
    ends = sizes.cumsum().tolist()
    pickled[ends[rows.comm.rank] - data.size : ends[rows.comm.rank]] = data
    rows.comm.all_gather(pickled, parts=sizes.tolist())
    object_list[:] = [
        pickle.loads(pickled[end - n : end].tobytes())
        for end, n in zip(ends, sizes.tolist(), strict=True)
    ]


def broadcast_object_list(object_list: list[Any], src: int = 0, group: Group = None) -> None:
    """Replaces the objects of the list by those of rank `src`; objects are pickled."""
    rows, root = rows_of(group), joined(group).member(src)
    is_root = rows.comm.rank == root
    data = np.frombuffer(pickle.dumps(object_list) if is_root else b"", np.uint8).copy()
    size = np.array([data.size])
    rows.broadcast(size, root).wait()
    if not is_root:
        data = np.empty(int(size[0]), np.uint8)
    rows.broadcast(data, root).wait()
    object_list[:] = pickle.loads(data.tobytes())


def _ended(handle: Handle, async_op: bool) -> Handle | None:
    """Returns the handle if `async_op`; otherwise waits for it and returns None."""
    if async_op:
        return handle
    handle.wait()
    return None


def _write(output: Array, part: Array) -> None:
    output[...] = part


def _parts(call: str, name: str, tensors: Sequence[Any], size: int, like: Array) -> list[Any]:
    """Returns for each of `tensors` a row that a collective fills, and a function to call then,
    which copies it to the tensor if the row is a copy. Raises an error unless there are `size`
    tensors with the type and the size of `like`."""
    _check_length(call, name, tensors, size)
    parts = [to_write(t, call) for t in tensors]
    for row, _ in parts:
        _check_fits(call, f"a tensor of {name}", row, like)
    return parts


def _split(call: str, row: Array, value: Any, sizes: Sequence[int] | None, ranks: int) -> Any:
    """Returns views of `row`, the flat array of the tensor `value`, one for each of `ranks` ranks,
    with the lengths `sizes` along the first axis or equal ones. Raises ValueError if they do not
    add up."""
    length = len(value) if len(value.shape) else 1
    if sizes is None or not len(sizes):
        if length % ranks:
            raise ValueError(
                f"{call}: {length} rows cannot be divided equally among {ranks} ranks: give split "
                "sizes"
            )
        sizes = [length // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != length:
        raise ValueError(
            f"{call}: split sizes {list(sizes)} for {length} rows and {ranks} ranks: give one size "
            "for each rank, which add up to the rows"
        )
    ends = np.cumsum(sizes) * (row.size // max(length, 1))
    return [row[end - n : end] for end, n in zip(ends, np.diff(ends, prepend=0), strict=True)]


def _check_length(call: str, name: str, values: Sequence[Any], size: int) -> None:
    if len(values) != size:
        raise ValueError(
            f"{call}: {name} has {len(values)} entries: give one for each of {size} ranks"
        )


def _check_fits(call: str, name: str, row: Array, part: Array, parts: int = 1) -> None:
    """Raises an error unless `row` has the type of `part`, and `parts` times as many elements."""
    _check_type(call, name, row, part)
    if row.size != part.size * parts:
        raise ValueError(
            f"{call}: {name} has {row.size} elements, and {part.size * parts} are needed"
        )


def _check_type(call: str, name: str, row: Array, other: Array) -> None:
    if row.dtype != other.dtype:
        raise TypeError(f"{call}: {name} is of {row.dtype}, and {other.dtype} is needed")
