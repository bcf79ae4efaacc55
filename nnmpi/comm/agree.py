"""The messages with which ranks tell each other of an error (see Comm.agree)."""

from nnmpi.comm.transport.base import OtherRankError

LONGEST = 500  # bytes


def encode(error: BaseException | None) -> bytes:
    """The message of an error, which is never empty; empty where there is no error."""
    if error is None:
        return b""
    text = str(error).strip() or type(error).__name__
    return text.encode(errors="replace")[:LONGEST]


def error_of(rank: int, failed: int, error: BaseException | None, text: bytes) -> BaseException:
    """What `rank` raises, where `failed` is the first rank with an error, and `text` its message.

    `error` is the rank's own.
    """
    if rank == failed and error is not None:
        return error
    other = OtherRankError(f"rank {failed}: {text.decode(errors='ignore')}")
    other.__cause__ = error
    return other
