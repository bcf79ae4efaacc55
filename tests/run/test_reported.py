"""What a rank has told."""

from nnmpi.run.reported import ReportedEvents


def after_step(step: int) -> ReportedEvents:
    reported = ReportedEvents()
    for kind in ("progress", "epoch"):
        assert reported.once(step, kind)
    return reported


def test_each_event_is_told_once_in_one_order() -> None:
    reported = after_step(5)
    assert not reported.once(5, "progress")
    assert not reported.once(4, "result")
    assert reported.once(5, "result")
    reported.go_back(4)
    assert reported.once(5, "progress")
