"""Slow ranks: what is written, what is refused, and how long they sleep."""

import time

import pytest

from nnmpi.parallel.stragglers import Clock, Delay


def delay(
    slow: str | None = None, jitter: str | None = None, rank: int = 0, seed: int = 0
) -> Delay:
    return Delay.of(slow, jitter, seed, rank, 3)


def test_without_words_nobody_is_slow() -> None:
    assert [delay(rank=r).factor(step) for r in range(3) for step in range(2)] == [1.0] * 6


def test_each_rank_has_the_factor_that_is_named() -> None:
    assert [delay("2:3,0:1.5", rank=r).factor(7) for r in range(3)] == [1.5, 1.0, 3.0]


def test_jitter_strikes_a_share_of_the_steps_by_the_seed_and_the_rank() -> None:
    def struck(rank: int, seed: int) -> list[int]:
        d = delay(None, "0.2:5", rank, seed)
        factors = [d.factor(step) for step in range(1000)]
        assert set(factors) == {1.0, 5.0}
        return [step for step, f in enumerate(factors) if f == 5.0]

    assert 150 < len(struck(0, 0)) < 250
    assert struck(0, 0) == struck(0, 0)
    assert struck(0, 0) != struck(1, 0)
    assert struck(0, 0) != struck(0, 1)


def test_both_multiply() -> None:
    assert delay("1:2", "1:3", rank=1).factor(0) == 6.0
    assert delay("1:2", "0:3", rank=1).factor(0) == 2.0


def test_a_slow_rank_sleeps_in_multiples_of_what_it_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    delay("0:4").wait(0, 0.5)
    delay("1:4").wait(0, 0.5)
    delay(None, "1:3").wait(0, 2.0)
    assert slept == [1.5, 4.0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("1", "slow_rank '1': write it as RANK:FACTOR, such as 2:3"),
        ("a:2", "slow_rank 'a:2': write it as RANK:FACTOR"),
        ("1:2:3", "slow_rank '1:2:3': write it as RANK:FACTOR"),
        ("0:2,", "slow_rank '': write it as RANK:FACTOR"),
        ("3:2", "slow_rank '3:2': the ranks that compute are 0 to 2"),
        ("-1:2", "slow_rank '-1:2': the ranks that compute are 0 to 2"),
        ("1.5:2", "slow_rank '1.5:2': the ranks that compute are 0 to 2"),
        ("nan:2", "slow_rank 'nan:2': the ranks that compute are 0 to 2"),
        ("inf:2", "slow_rank 'inf:2': the ranks that compute are 0 to 2"),
        ("1:0.5", "slow_rank '1:0.5': the factor must be between 1 and 1000"),
        ("1:nan", "slow_rank '1:nan': the factor must be between 1 and 1000"),
        ("1:2,1:3", "slow_rank '1:2,1:3': rank 1 is there twice; keep one of them"),
    ],
)
def test_slow_ranks_that_cannot_be(words: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        delay(words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("0.1", "jitter '0.1': write it as SHARE:FACTOR, such as 0.1:5"),
        ("1.5:2", "jitter '1.5:2': a share of the steps is between 0 and 1"),
        ("nan:2", "jitter 'nan:2': a share of the steps is between 0 and 1"),
        ("0.1:0.5", "jitter '0.1:0.5': the factor must be between 1 and 1000"),
        ("0.1:inf", "jitter '0.1:inf': the factor must be between 1 and 1000"),
    ],
)
def test_jitter_that_cannot_be(words: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        delay(None, words)


def test_the_time_of_what_ranks_do_together_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "thread_time", lambda: now[0])

    def spend(seconds: float) -> float:
        now[0] += seconds
        return seconds

    clock = Clock()
    clock.begin()
    spend(2.0)
    assert clock.beside(spend)(5.0) == 5.0
    spend(1.0)
    with pytest.raises(TypeError):
        clock.beside(spend)("long")  # type: ignore[arg-type]
    assert clock.seconds() == 3.0
    clock.begin()
    assert clock.seconds() == 0.0
