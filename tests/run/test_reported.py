"""What a rank has told."""

from nnmpi.run.reported_events import ReportedEvents


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
