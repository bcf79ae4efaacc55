"""The list of each layout of the table of conformance is proved."""

from helpers.training.conformance import arranged_rows
from helpers.training.on_paper import arranged
from helpers.training.pipelined import digits

from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.step_list.proof import prove
from nnmpi.parallel.step_list.step import step_list


def test_the_lists_of_all_layouts_are_proved() -> None:
    proved = 0
    for row, _ in arranged_rows():
        options = dict(row.options or {})
        build, given = options.pop("build", None), options.pop("given", digits)
        a = arranged(Cluster.on_paper(row.ranks), build, given, **options)
        if a.strategy.name not in ("replicas", "pipeline") or a.recomputes:
            continue  # steps that are no lists yet
        ranks = {
            (at["tp"], at["pp"]): rank
            for rank, at in enumerate(map(a.mesh.coordinates, range(a.mesh.size)))
        }
        axes, micro = a.mesh.axes, a.config.micro_batches
        for tp in range(axes["tp"]):
            lists = [step_list(a, ranks[tp, pp], micro) for pp in range(axes["pp"])]
            try:
                prove([[step] * 2 for step in lists])
            except ValueError as error:
                raise AssertionError(row.name) from error
        proved += 1
    assert proved > 600
