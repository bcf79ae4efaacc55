"""Ranks agree on an error: all of them raise if one has failed."""

from collections.abc import Callable

import numpy as np

from nnmpi.comm.call_log import CallRecord
from nnmpi.comm.calls import Calls
from nnmpi.comm.steps import Steps
from nnmpi.comm.transport.base import AbortedError, Bytes, OtherRankError

LONGEST_ERROR = 500  # bytes of an error's message that other ranks get


def agree(
    error: BaseException | None, calls: Calls, gather: Callable[[Bytes], tuple[Steps, CallRecord]]
) -> None:
    """See `Comm.agree`. `gather` collects the parts of all ranks, of one length."""
    rank, size = calls.transport.rank, calls.transport.size
    text = "" if error is None else str(error).strip() or type(error).__name__
    texts = np.zeros(size, f"S{LONGEST_ERROR}")
    texts[rank] = text.encode(errors="replace")
    try:
        calls.finish(*gather(texts.view(np.uint8)))
    except AbortedError as aborted:  # by a rank that has all texts already, and has raised
        if error is not None:
            raise error  # noqa: B904
        raise aborted from None
    failed = np.flatnonzero(texts != b"")
    if failed.size:
        first = failed[0]
        if first == rank and error is not None:
            raise error
        raise OtherRankError(f"rank {first}: {texts[first].decode(errors='ignore')}") from error
