"""What a rank has told, and what the next first rank takes from the log."""

from pathlib import Path

from nnmpi.run.told import Told, place

START = '{"event": "start"}\n'
EPOCH = '{"event": "epoch", "epoch": 1, "steps": 5}\n'


def after_step(step: int) -> Told:
    told = Told()
    for kind in ("progress", "epoch"):
        assert told.once(step, kind)
    return told


def test_each_event_is_told_once_in_one_order() -> None:
    told = after_step(5)
    assert not told.once(5, "progress")
    assert not told.once(4, "result")
    assert told.once(5, "result")
    told.go_back(4)
    assert told.once(5, "progress")


def test_the_log_decides_what_was_told_after_the_last_step(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for text, is_new in ((START, True), (START + EPOCH, False), (START + EPOCH[:-2], True)):
        log.write_text(text)
        told = after_step(5)
        told.is_in_log(str(log))
        assert not told.once(5, "progress")
        assert told.once(5, "epoch") == is_new


def test_a_log_may_be_further_than_the_rank(tmp_path: Path) -> None:
    log, told = tmp_path / "log", Told()
    log.write_text(START + EPOCH)
    told.is_in_log(str(log))
    assert not told.once(5, "progress")
    assert not told.once(5, "epoch")
    assert told.once(6, "progress")


def test_a_call_that_was_interrupted_is_made_again_on_all_ranks() -> None:
    first, second = place(5, "on_step", 0), place(5, "on_step", 1)
    told = Told()
    for here in (first, second):
        with told.call(here):
            assert told.calling == here
    told.take(None, frozenset([first]))
    assert (told.is_called(first), told.is_called(second)) == (False, True)
    assert told.interrupted == {first}  # after another loss too
    with told.call(first):
        pass
    assert told.is_called(first)
    assert not told.interrupted
