"""What a rank has told, what the next first rank takes from the log, and calls made again."""

from pathlib import Path

from nnmpi.addons.recovery.run.reported_log import adopt_reported, interrupted, read_log
from nnmpi.run.reported_events import ReportedEvents, event_position

START = '{"event": "start"}\n'
EPOCH = '{"event": "epoch", "epoch": 1, "steps": 5}\n'


def test_the_log_decides_what_was_told_after_the_last_step(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for text, is_new in ((START, True), (START + EPOCH, False), (START + EPOCH[:-2], True)):
        log.write_text(text)
        reported = ReportedEvents()
        assert reported.claim(5, "epoch")
        read_log(reported, str(log), 0)
        assert not reported.claim(5, "progress")
        assert reported.claim(5, "epoch") == is_new


def test_a_log_may_be_further_than_the_rank(tmp_path: Path) -> None:
    log, reported = tmp_path / "log", ReportedEvents()
    log.write_text(START + EPOCH)
    read_log(reported, str(log), 0)
    assert not reported.claim(5, "progress")
    assert not reported.claim(5, "epoch")
    assert reported.claim(6, "progress")


def test_a_call_that_was_interrupted_is_made_again_on_all_ranks() -> None:
    first, second = event_position(5, "on_step", 0), event_position(5, "on_step", 1)
    reported = ReportedEvents()
    for position in (first, second):
        with reported.call(position):
            assert reported.calling == position
    adopt_reported(reported, None, frozenset([first]))
    assert (reported.is_called(first), reported.is_called(second)) == (False, True)
    assert interrupted(reported) == {first}  # after another loss too
    with reported.call(first):
        pass
    assert reported.is_called(first)
    assert not interrupted(reported)


def after_step(step: int) -> ReportedEvents:
    reported = ReportedEvents()
    for kind in ("progress", "epoch"):
        assert reported.claim(step, kind)
    return reported


def test_each_event_is_told_once_in_one_order() -> None:
    reported = after_step(5)
    assert not reported.claim(5, "progress")
    assert not reported.claim(4, "result")
    assert reported.claim(5, "result")
    reported.go_back(4)
    assert reported.claim(5, "progress")
