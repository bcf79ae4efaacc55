"""The schedule of local steps: replicas train alone for some steps, then exchange their layers.

every 6 steps, 2 fragments, applied 1 step later; layers 0 to 3

step            0   1   2   3   4   5   6   7   8
sent after          0,2         1,3         0,2
applied after           0,2         1,3         0,2
                ├─────── a period ──────┤
"""

from typing import NamedTuple


class LocalSteps(NamedTuple):
    """The schedule of a period of local steps, in which replicas exchange each layer once.

    every         steps of a period: 1 is data parallelism
    fragments     parts of the model that are exchanged in turn; part i has layers i, i +
                  fragments, ... (strided: the next forward pass needs few of them at once)
    apply_after   steps that replicas compute before they use what they receive
    """

    every: int = 1
    fragments: int = 1
    apply_after: int = 0

    def check(self, layers: int) -> None:
        """Raises ValueError unless this schedule suits a model of so many layers."""
        if self.every < 1:
            raise ValueError(f"--every {self.every} must be at least 1")
        if not 1 <= self.fragments <= layers:
            raise ValueError(f"--fragments {self.fragments} must be from 1 to {layers}, the layers")
        if not 0 <= self.apply_after <= self.every:
            raise ValueError(
                f"--apply-after {self.apply_after} must be from 0 to --every {self.every}, the "
                "steps from one exchange of a layer to the next"
            )

    def check_run(self, layers: int) -> None:
        """Raises ValueError unless training can follow this schedule for a model with this many
        layers: each fragment must be sent and applied in the same period."""
        self.check(layers)
        first = self.applied(0)
        if self.apply_after >= first:
            raise ValueError(
                f"--apply-after {self.apply_after} must be below {first}, the steps from one "
                f"fragment to the next: --every {self.every} / --fragments {self.fragments}, "
                "rounded up"
            )

    def applied(self, fragment: int) -> int:
        """Returns the step of a period (from 1) after which exchanged layers are used."""
        return -(-(fragment + 1) * self.every // self.fragments)

    def sent(self, layers: int) -> list[list[int]]:
        """Returns, for each step of a period, the layers that are sent after it. They are in the
        order in which gradients are computed: the last layer first."""
        steps: list[list[int]] = [[] for _ in range(self.every)]
        for i in range(self.fragments):
            last = self.applied(i) - 1 - self.apply_after
            steps[last % self.every] += range(i, layers, self.fragments)
        return [sorted(step, reverse=True) for step in steps]
