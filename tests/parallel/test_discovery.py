"""What ranks ask each other before it is decided what they do."""

from nnmpi.parallel.arrangement.cluster import gpu_indices


def test_gpus_are_told_apart_by_their_addresses() -> None:
    """Each of these processes calls its own GPU number 0."""
    assert gpu_indices((0, 0, 0), ("07:00", "03:00", "0b:00")) == (1, 0, 2)
    assert gpu_indices((0, 0, 2, 2), ("03:00", "03:00", "03:00", "07:00")) == (0, 0, 0, 1)
    assert gpu_indices((0, 0), (None, None)) == (None, None)
