"""The list of each layout of the table of conformance is proved."""

from helpers.sample import one_in
from helpers.step_lists import prove_lists
from helpers.training.conformance import arranged_rows
from helpers.training.on_paper import arranged
from helpers.training.pipelined import digits

from nnmpi.parallel.arrangement.cluster import Cluster


def test_the_lists_of_layouts_are_proved(is_sample: bool) -> None:
    """Of the rows whose arrangement is held to the run, and of each fourth of the others; with
    --all of all rows."""
    table = [*arranged_rows()]
    fourth = {row.name for row in one_in(4, [row for row, _ in table], "lists")}
    chosen = [row for row, is_of_sample in table if is_of_sample or row.name in fourth]
    for row in chosen:
        options = dict(row.options or {})
        build, given = options.pop("build", None), options.pop("given", digits)
        a = arranged(Cluster.on_paper(row.ranks), build, given, **options)
        try:
            prove_lists(a)
        except ValueError as error:
            raise AssertionError(row.name) from error
    assert len(chosen) > (150 if is_sample else 600)
    print(len(chosen), "lists")
