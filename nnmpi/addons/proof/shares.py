"""Shares: the part of each gradient that ranks along each axis of the mesh have, derived from the
model as recorded on one rank, and from where its parts are (Placement). Nothing is read here that
makes the lists of operations."""

from collections import defaultdict
from collections.abc import Mapping

from nnmpi.addons.proof.layers import Due, GradientShare, Layer, Share
from nnmpi.addons.proof.placement import Placement
from nnmpi.schedules.lists.step_list import ScheduleError


class Shares:
    """The shares of all gradients, and the exchanges that are due within passes.

    gradients   by parameter and axis
    due, may    the exchanges that have to be made in passes; those that only repeat an earlier one,
                instead of keeping its result
    users       by parameter: the stages that use it
    """

    def __init__(self, place: Placement) -> None:
        self.place, self._graph = place, place.graph
        self.due, self.may = list[Due](), list[Due]()
        self.users = defaultdict[int, set[int]](set)
        uses = defaultdict[tuple[int, str], dict[Share, str]](dict)
        for stage, part in enumerate(place.stages):
            for k in part.nodes:
                for axis in place.cuts:
                    layer = Layer(place, stage, k, axis)
                    self.due += layer.due
                    self.may += layer.may
                    for v, (share, why) in layer.parameters():
                        uses[v, axis].setdefault(share, why)
                for v in self._graph.nodes[k].variables:
                    self.users[v].add(stage)
        self.gradients = {key: self._joined(*key, shares) for key, shares in uses.items()}
        self._of_parts()
        self._of_loss()

    def _joined(self, v: int, axis: str, shares: Mapping[Share, str]) -> GradientShare:
        """Returns the share of a gradient that is the sum over several uses."""
        if len(shares) > 1:
            said = " and ".join(f"{share.value}, since {why}," for share, why in shares.items())
            raise ScheduleError(
                f"the gradient of {self.path(v)} is {said} along {axis}: no sum is right for both"
            )
        ((share, why),) = shares.items()
        return GradientShare(share, why)

    def _of_parts(self) -> None:
        """Notes the exchanges of modules whose parts, such as branches, single ranks along tp
        compute: of the outputs, and of the gradient of each input."""
        nodes, edges = self._graph.nodes, self._graph.edges
        for k, call in self.place.owned.calls.items():
            stage = next(s for s, part in enumerate(self.place.stages) if k in part.nodes)
            inside = {e for i in call.nodes for e in nodes[i].outputs}
            taken = dict.fromkeys(e for i in (*call.nodes, k) for e in nodes[i].inputs)
            (output,), why = nodes[k].outputs, f"single ranks compute parts of {call.path}"
            is_sum = all(edges[e].elements == edges[output].elements for e in nodes[k].inputs)
            operation = "all_reduce" if is_sum else "all_gather"
            self.due.append(Due(stage, "F", "tp", operation, (output,), why, k))
            for e in taken:
                if e not in inside and edges[e].requires_grad:
                    self.due.append(Due(stage, "B", "tp", "all_reduce", (e,), why, k))

    def _of_loss(self) -> None:
        """Derives the share of the loss: it is a sum over samples and positions, and needs the
        scores of all classes."""
        self.loss, (e, *_) = dict[str, Share](), self._graph.outputs
        for axis, cuts in self.place.cuts.items():
            cut = cuts.get(e) if self.place.sizes[axis] > 1 else None
            is_class = cut == 1
            self.loss[axis] = Share.WHOLE if cut is None or is_class else Share.TERM
            if is_class:
                last, why = len(self.place.stages) - 1, "a softmax needs the classes of all ranks"
                self.due.append(Due(last, "F", axis, "maxima", (e,), why, len(self._graph.nodes)))

    def path(self, v: int) -> str:
        """Returns the path of a parameter in the model."""
        return self._graph.variables[v].path

    def terms(self, v: int) -> dict[str, str]:
        """Returns the axes along which ranks have terms of the gradient of a parameter, pp
        included, each with a text that says why."""
        axes = {axis: self.gradients[v, axis] for axis in self.place.cuts}
        terms = {axis: why for axis, (share, why) in axes.items() if share is Share.TERM}
        places = sorted({self.place.stages[s].rank for s in self.users[v]})
        if len(places) > 1:
            terms["pp"] = f"ranks {' and '.join(map(str, places))} along pp use it"
        return {axis: why for axis, why in terms.items() if self.place.sizes[axis] > 1}
