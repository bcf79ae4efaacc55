"""A parameter server on processes of MPI."""

import hashlib

from helpers.training.pipelined import same_on_all

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.io.output import NullReport


def ranks_end_with_the_same_parameters(comm: Comm) -> None:
    for sync in ("bsp", "asp"):
        trainer = Trainer(Config(data="digits", sync=sync, servers=2, steps=40), comm=comm)
        trainer.fit(NullReport())
        state = b"".join(t.numpy().tobytes() for t in trainer.model.state_dict().values())
        assert same_on_all(comm, hashlib.sha256(state).hexdigest())
        trainer.close()
