"""Samples of large tables have each value of an argument that has few."""

import pytest


@pytest.mark.one_in(2)
@pytest.mark.parametrize("few", "xy")
@pytest.mark.parametrize("many", range(9))
def test_a_case_of_a_sample(many: int, few: str, request: pytest.FixtureRequest) -> None:
    """Every second case alone would have one of the two letters."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    cases = [
        item.callspec.params for item in items if item.originalname == request.node.originalname
    ]
    if len(cases) > 1:  # more than -k or a node id has chosen
        assert {case["few"] for case in cases} == {"x", "y"}
        assert len(cases) in (9 + 1, 18)
