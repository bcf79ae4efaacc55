"""The faults that scripts/mutants plants: which there are, and that each run tries the same."""

from pathlib import Path

from helpers.mutations import Finder, sample

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''\
START = 1


def f(xs: list[int], n: int = 0) -> int:
    """No fault: 1 + 1."""
    if not xs:
        raise ValueError(xs)
    for x in xs:
        send(x)
        wait()
    assert n
    total: int = (n + n) * max(xs)
    return total < 7
'''
EXPECTED = """\
order: xs -> reversed([*xs])
guard: not xs -> False and (not xs)
guard: not xs -> not (not xs)
guard: assert n -> pass
value: ) * -> ) //
value: + -> -
value: max -> min
value: < -> <=
value: 7 -> 8
message: send(x) -> pass
message: wait() -> pass
order: send(x) wait() -> wait() send(x)
"""


def test_the_faults_of_a_function() -> None:
    """None is in a type, in a default value, in a docstring or outside functions."""
    names = (each.name.partition(" ")[2] for each in Finder("nnmpi/file.py", SOURCE.encode()))
    assert sorted(names) == sorted(EXPECTED.splitlines())


def test_a_fault_changes_its_place_alone() -> None:
    for each in Finder("nnmpi/file.py", SOURCE.encode()):
        changed = each.applied(SOURCE.encode()).decode()
        same = len(SOURCE) - each.end
        assert changed[: each.start] == SOURCE[: each.start]
        assert changed[len(changed) - same :] == SOURCE[each.end :]
        assert changed != SOURCE


def test_the_sample_has_every_room_and_kind(tmp_path: Path) -> None:
    for room in "a", "b":
        (tmp_path / "nnmpi" / room).mkdir(parents=True)
        (tmp_path / "nnmpi" / room / "file.py").write_text(SOURCE)
    (tmp_path / "nnmpi" / "a" / "more.py").write_text(SOURCE * 3)
    drawn = sample(8, tmp_path)
    kinds = ("guard", "message", "order", "value")
    assert {(each.room, each.kind) for each in drawn} == {(r, k) for r in "ab" for k in kinds}
    assert sample(8, tmp_path) == drawn
