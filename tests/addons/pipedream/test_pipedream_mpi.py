"""PipeDream over MPI: the command."""

import json

from helpers.mpijob import run

COMMAND = ("-m", "nnmpi.train", "--json", "--data", "digits", "--model", "mlp:64-48-40-32-10")
PIPELINE = ("--pp", "3", "--schedule", "pipedream", "--cut", "3,5")


def test_it_trains() -> None:
    ran = run(3, *COMMAND, *PIPELINE, "--epochs", "3", "--batch-size", "32")
    assert ran.status == 0, ran.err
    *_, done = map(json.loads, ran.out.splitlines())
    assert (done["event"], done["steps"], done["weight_versions"]) == ("done", 3 * 45, 3)
    assert done["accuracy"] > 0.7
