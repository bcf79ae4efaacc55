"""How many lines of core have words that only an add-on has to know."""

import re
from pathlib import Path

import pytest

import nnmpi
from nnmpi.addons import ADD_ONS

ROOT = Path(nnmpi.__file__).parents[1]
DOORS = {m.replace(".", "/") + ".py" for a in ADD_ONS.values() for m in a.modules}
LINES = [
    line.lower()
    for path in sorted((ROOT / "nnmpi").rglob("*"))
    for file in (path.relative_to(ROOT).as_posix(),)
    if path.suffix in (".py", ".c", ".h") and not file.startswith("nnmpi/addons/")
    if file not in DOORS
    for line in path.read_text(encoding="utf-8").splitlines()
]

MOST = {
    "averaging": ("averaging|local steps|apply_after|fragment", 26),
    "checkpoints": ("checkpoint", 129),
    "checks": ("verif(y|ied|ies)|reproducib|slow[_ ]rank|jitter", 32),
    "compression": ("compress|codec", 13),
    "cuda": ("cuda|cupy|cudnn|cublas|nvrtc|tf32", 68),
    "doctor": ("doctor", 3),
    "images": ("mnist|cifar", 9),
    "language": (r"\bgpt|llama|tokeni[sz]", 33),
    "layer_ways": (r"\bexpert|image[ _]rows|spatial", 9),
    "nccl": ("nccl", 9),
    "optimizers": (r"asgd|adadelta|adagrad|adamax|nadam|radam|\blamb\b|\blars\b|muon", 20),
    "pages": ("notebook|ipython|tensorboard|wandb|logger", 13),
    "pipedream": ("pipedream", 10),
    "planning": ("dry[-_ ]run|planner|planning", 10),
    "recovery": (
        "recover|backup|ulfm|undo|surviv|elastic|revok|fault[_ ]tolerant|lost[_ ]rank|rank_?lost",
        122,
    ),
    "recurrent": (r"lstm|\bgru|recurren", 17),
    "servers": (r"\bserver|staleness|\bserved", 49),
    "simulator": ("simulat", 21),
    "swapping": (r"swap\b|swapp", 16),
    "trace": (r"\btracer", 12),
    "transformer": (r"attention|swiglu|rotary|\brope\b", 22),
    "winograd": ("winograd", 29),
}
"""By the name of an add-on: its words, and the number of lines of core that have one of them. Such
a number may only fall: move the line to the add-on, or say it without the word."""


@pytest.mark.parametrize("name", MOST)
def test_core_has_no_more_lines_about_an_add_on(name: str) -> None:
    words, most = MOST[name]
    assert sum(bool(re.search(words, line)) for line in LINES) <= most


def test_lines_with_the_words_are_found() -> None:
    found = [
        name for name, (words, _) in MOST.items() if re.search(words, "backup of a checkpoint")
    ]
    assert found == ["checkpoints", "recovery"]
