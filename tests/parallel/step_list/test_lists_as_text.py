"""`simulate layout --list` prints the list of each kind of rank, or says why there is none."""

from pathlib import Path
from typing import Any

import pytest

from nnmpi import simulate


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    status = simulate.main(["layout", "--data", "digits", "--list", *options])
    out, err = capsys.readouterr()
    return status, out, err


LISTS = {
    "--ranks 4 --model mlp:64-128-128-64-10 --cut 2 --bucket-mb 0.02 --dp 2 --pp 2 "
    "--micro-batches 1": """\
list of ranks 2, 3, proved:
  unit 0: 3.weight to 3.bias, buckets: 0
  unit 1: 5.weight to 7.bias, buckets: 1
  RECV_F1.0 F0.0 F1.0 NOTE B1.0 SUM1 B0.0 SEND_B1.0 SUM0 FINISH1 FINISH0 AGREE APPLY
""",
    "--ranks 2 --model mlp:64-32-10 --reproducible --slices 3": """\
list of ranks 0, proved:
  unit 0: 1.weight to 3.bias, buckets: 0
  PUSH0.0 F0.0 B0.0 NOTE RECV_SUM0 ADD0 SUM0 FINISH0 AGREE APPLY
list of ranks 1, proved:
  unit 0: 1.weight to 3.bias, buckets: 0
  PUSH0.0 F0.0 B0.0 NOTE PUSH0.1 F0.1 B0.1 NOTE ADD0 SEND_SUM0 SUM0 FINISH0 AGREE APPLY
""",
    "--ranks 2 --model mlp:64-128-10 --cut 3 --pp 2 --schedule pipedream": """\
list of ranks 0, proved:
  unit 0: 1.weight to 1.bias, buckets: 0
  F0.0 SEND_F1.0 RECV_B1.0 F0.1 SEND_F1.1 RECV_B1.1 B0.0 APPLY0 B0.1 APPLY1
list of ranks 1, proved:
  unit 0: 3.weight to 3.bias, buckets: 0
  RECV_F1.0 F0.0 RECV_F1.1 B0.0 SEND_B1.0 APPLY0 F0.1 B0.1 SEND_B1.1 APPLY1
""",
    "--ranks 3 --model mlp:64-32-10 --sync asp": """\
list of ranks 0, 1, proved:
  unit 0: 1.weight to 3.bias, buckets: 0
  F0.0 NOTE B0.0 SUM0 FINISH0 AGREE APPLY
no list of ranks 2: servers answer requests in the order of arrival
""",
}


@pytest.mark.parametrize("options", LISTS)
def test_the_lists_that_are_printed(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = printed(capsys, *options.split())
    assert status == 0, err
    assert out.endswith(LISTS[options])


STRATEGIES = "--schedule pipedream --pp 2 --cut 3", "--sync asp", "--reproducible"


@pytest.mark.parametrize("options", STRATEGIES)
def test_the_lists_of_all_strategies_are_drawn(
    options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--ranks", "2", "--model", "mlp:64-32-10", *options.split()
    status, _, err = printed(capsys, *words, "--svg", str(tmp_path / "step.svg"))
    assert status == 0, err
    assert "computes" in (tmp_path / "step.svg").read_text()


OTHERS = "--sync gossip", "--verify"


@pytest.mark.parametrize("options", OTHERS)
def test_steps_that_are_not_one_list_are_refused(
    capsys: pytest.CaptureFixture[str], options: str
) -> None:
    status, _, err = printed(capsys, "--ranks", "2", "--model", "mlp:64-32-10", *options.split())
    assert status == 2
    assert "--list: a step with" in err
