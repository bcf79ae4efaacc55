"""The training command; ranks are killed after the second epoch: RANK,..., its arguments."""

import os
import signal
import sys
from functools import partial

from nnmpi import train
from nnmpi.comm import ended
from nnmpi.io.output import Event


class DiesAfterAnEpoch:
    """A callback that all ranks have, as it is told together."""

    def __init__(self, ranks: str) -> None:
        self.is_victim = os.environ["OMPI_COMM_WORLD_RANK"] in ranks.split(",")

    def on_epoch(self, trainer: object, event: Event) -> None:
        if self.is_victim and event["epoch"] == 2:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    callbacks = [DiesAfterAnEpoch(sys.argv[1])]
    train.Trainer = partial(train.Trainer, callbacks=callbacks)  # type: ignore[assignment,misc]
    sys.exit(ended(train.command(sys.argv[2:])))
