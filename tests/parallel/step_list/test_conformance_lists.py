"""The list of each layout of the table of conformance is proved."""

from helpers.step_lists import prove_lists
from helpers.training.conformance import arranged_rows
from helpers.training.on_paper import arranged
from helpers.training.pipelined import digits

from nnmpi.parallel.arrangement.cluster import Cluster


def test_the_lists_of_all_layouts_are_proved() -> None:
    proved = 0
    for row, _ in arranged_rows():
        options = dict(row.options or {})
        build, given = options.pop("build", None), options.pop("given", digits)
        a = arranged(Cluster.on_paper(row.ranks), build, given, **options)
        try:
            proved += prove_lists(a)
        except ValueError as error:
            raise AssertionError(row.name) from error
    assert proved > 600
    print(proved, "lists")
