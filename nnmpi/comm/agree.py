"""What ranks tell each other of an error that only some of them have met with."""

from nnmpi.comm.transport.base import OtherRankError

MOST = 500  # bytes of a message that is sent on


def told(error: BaseException | None) -> bytes:
    """What another rank is told of it; nothing of None alone."""
    if error is None:
        return b""
    text = str(error).strip() or type(error).__name__
    return text.encode(errors="replace")[:MOST]


def outcome(rank: int, failed: int, error: BaseException | None, text: bytes) -> BaseException:
    """What a rank raises if `failed` is the first rank with an error, which told this text."""
    if rank == failed and error is not None:
        return error
    other = OtherRankError(f"rank {failed}: {text.decode(errors='ignore')}")
    other.__cause__ = error
    return other
