"""What a run has counted so far, as checkpoints keep it."""

from nnmpi.io.output.pace import Pace, PaceCounts


def test_a_run_that_is_resumed_continues_to_count_seconds() -> None:
    """The clock alone would have counted from zero."""
    resumed = Pace(so_far=PaceCounts(elapsed=1000.0))
    assert resumed.counts.elapsed >= 1000
    assert resumed.again(resumed.counts).counts.elapsed >= 1000
