"""Where activations are: the two clocks, and the choice beside the best of all choices."""

import math
from itertools import product

import numpy as np
import pytest

from nnmpi.addons.swapping.placement import (
    Disk,
    Placement,
    UnitDemand,
    choose,
    least_memory,
    seconds,
)

K, S, R = Placement
FAST, SLOW = Disk(1e3, 1e3), Disk(0.5, 0.5)


def alike(n: int) -> list[UnitDemand]:
    return [UnitDemand(1.0, 2.0, 1.0, 0.25)] * n


def test_kept_units_take_the_time_of_their_passes() -> None:
    assert seconds(alike(4), (K,) * 4, 4.0, FAST) == 12.0
    assert seconds(alike(4), (K,) * 4, 3.9, FAST) == math.inf


def test_a_unit_that_is_computed_again_takes_its_forward_pass_twice() -> None:
    assert seconds(alike(4), (R, R, K, K), 2.5, FAST) == 14.0
    assert seconds(alike(4), (R, R, K, K), 2.49, FAST) == math.inf


def test_a_fast_disk_hides_behind_passes_and_a_slow_one_does_not() -> None:
    disk = Disk(1.0, 1.0)  # a unit a second, while a pass takes one or two
    assert seconds(alike(4), (S, S, K, K), 4.0, disk) == pytest.approx(12.0)
    # writing 0 and 1: until 3 and 5, when unit 2 finds room for itself
    assert seconds(alike(3), (S, S, K), 1.0, SLOW) == pytest.approx(
        1 + 2 + 1 + 2 + 1 + 2 + 2 + 2 + 2 + 2
    )


def test_new_pages_take_time_where_those_before_them_were_dropped() -> None:
    assert seconds(alike(2), (S, K), 2.0, Disk(10, 10, 0.5)) == 2 * 3 + 0.5


def test_optimizer_state_is_written_first_and_read_last() -> None:
    """Unit 0 finds room when they are written, at 2; they find room when it is done, at 5."""
    assert seconds(alike(1), (K,), 1.0, SLOW, state=1.0) == 2 + 3 + 2
    assert seconds(alike(1), (K,), 2.0, SLOW, state=1.0) == 4  # they are written, and read again


def test_room_is_left_for_units_that_are_computed_again_before_what_is_read() -> None:
    """Unit 0 may not be read while unit 1 is still to be computed again: both do not fit."""
    assert seconds(alike(2), (S, R), 1.25, FAST) < math.inf


def cases(count: int, most: int) -> list[tuple[list[UnitDemand], float, Disk]]:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        n = int(rng.integers(1, most + 1))
        rows = rng.uniform(0.1, 2.0, (n, 4)).tolist()
        units = [UnitDemand(f, 2 * f, b, b * min(share / 2, 1)) for f, b, share, _ in rows]
        most_bytes = sum(unit.nbytes for unit in units)
        least = least_memory(units)
        memory = least + (most_bytes - least) * float(rng.uniform())
        speeds = (10.0 ** rng.uniform(-1, 1.5, 2)).tolist()
        found.append((units, memory, Disk(*speeds, float(rng.uniform(0, 0.1)))))
    return found


def test_the_choice_is_near_the_best_of_all() -> None:
    """It is the best one nearly always, and never far from it."""
    ratios = []
    for units, memory, disk in cases(60, 5):
        best = min(
            seconds(units, choice, memory, disk) for choice in product(Placement, repeat=len(units))
        )
        ratios.append(seconds(units, choose(units, memory, disk), memory, disk) / best)
    assert min(ratios) >= 1 - 1e-9
    assert np.mean(np.array(ratios) < 1 + 1e-9) >= 0.95
    assert max(ratios) < 1.05


def test_more_memory_is_never_slower_and_enough_of_it_keeps_all() -> None:
    for units, memory, disk in cases(20, 8):
        choice = choose(units, sum(u.nbytes for u in units), disk)
        assert choice == (K,) * len(units)
        less = seconds(units, choose(units, memory, disk), memory, disk)
        assert less >= sum(u.forward + u.backward for u in units) * (1 - 1e-9)


def test_too_little_memory_for_one_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="one unit needs 1 bytes; 0 are free"):
        choose(alike(3), 0.9, FAST)


def test_memory_that_was_free_is_touched_at_no_cost_and_new_pages_take_time() -> None:
    disk = Disk(10, 10, touch=1.0)
    assert seconds(alike(2), (K, K), 2.0, disk) == 2 * 3  # pages of the step before
    # unit 0 is written until 1.1, when its pages are dropped: half of what unit 1 needs is free;
    # where that is done, all is, and unit 0 has half of its pages again
    assert seconds(alike(2), (S, K), 1.5, disk) == pytest.approx(1 + 0.1 + 0.5 + 1 + 2 + 0.1 + 2)
    # unit 1 works in the pages that unit 0 has left, and so does unit 0 when it runs again
    assert seconds(alike(2), (R, K), 1.25, disk) == 2 * 3 + 1
    # unit 0 is written until 1.1, when unit 1 runs in the last free pages: kept units leave none
    assert seconds(alike(4), (S, K, K, K), 3.0, disk) == 4 * 3 + 1
