"""Commands with --machine and --vocabulary: what they refuse, and that their figures agree."""

import json
import shlex

import pytest
from helpers.programs import python

from nnmpi import plan, simulate

GPT = "--machine a100-80g --ranks 4 --model gpt:2x4x64 --context 64 --batch-size 16"
GOODPUT = "goodput --ranks 16384 --mttf-node 30000h --checkpoint 60s --restart 300s"
LAYOUT = "--pp 2 --dp 2 --micro-batches 4"


def test_the_command_of_a_plan_names_no_data_that_were_not_given(capsys):
    assert plan.main(shlex.split(f"{GPT} --vocabulary 512 --json")) == 0
    event = json.loads(capsys.readouterr().out)
    assert "--data=DATA" in event["command"]
    assert any("data of 512 tokens in the place of DATA" in note for note in event["notes"])


def test_simulate_layout_and_explain_predict_one_time(capsys):
    llama = GPT.replace("gpt:2x4x64", "llama:6x4x256:2") + " --vocabulary 32000 --dtype bfloat16"
    assert plan.main([*shlex.split(llama), f"--explain={LAYOUT}", "--json"]) == 0
    explained = json.loads(capsys.readouterr().out)
    assert simulate.main(shlex.split(f"layout {llama} {LAYOUT} --json")) == 0
    simulated = json.loads(capsys.readouterr().out)
    assert simulated["seconds"] == pytest.approx(explained["seconds"], rel=1e-12)


WITHOUT_ML_DTYPES = """
import sys

sys.modules["ml_dtypes"] = None  # importing it raises ImportError
from nnmpi import plan, simulate

*options, layout = sys.argv[1:]
status = plan.main([*options, "--explain=" + layout])
sys.exit(status or simulate.main(["layout", *options, *layout.split(), "--list"]))
"""


def test_bfloat16_is_planned_without_the_package_that_computes_in_it(capsys):
    options, layout = shlex.split(f"{GPT} --vocabulary 100 --dtype bfloat16"), "--dp 4 --zero 1"
    assert plan.main([*options, f"--explain={layout}"]) == 0
    assert simulate.main(["layout", *options, *layout.split(), "--list"]) == 0
    done = python("-c", WITHOUT_ML_DTYPES, *options, layout)
    assert (done.status, done.err) == (0, "")
    assert done.out == capsys.readouterr().out


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("machine", "ranks"), [("a100-80g", 8), ("tpu-v5p", 4), ("a64fx:16", 16)])
def test_a_machine_says_how_many_ranks_are_lost_together(machine, ranks, capsys):
    assert simulate.main(shlex.split(f"{GOODPUT} --ranks-per-node {ranks}")) == 0
    given = capsys.readouterr().out
    assert simulate.main(shlex.split(f"{GOODPUT} --machine {machine}")) == 0
    assert capsys.readouterr().out == given
