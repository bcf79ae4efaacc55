"""TOML files of options with damaged text and with values of any type."""

from pathlib import Path

import numpy as np
from fuzzing import Outcome, damaged, refused

from nnmpi.cli import from_toml
from nnmpi.config import options

GOOD_FILE = """# a run
model = "iris-mlp"
data = 'iris'
[training]
epochs = 3
batch-size = 16
lr = 1e-2
lr_schedule = "warmup:5+cosine"
[reduce]
bucket_mb = 0.5
overlap = false
[files]
save = \"\"\"m.safetensors\"\"\"
"""
VALUES = (
    *("1", "-1", "0.5", "nan", "inf", "-0", "1e400", "true", '"text"', '""', "'iris'", '"\\u0000"'),
    *("[1, 2]", "{a = 1}", "1979-05-27", "07:32:00", "0x" + "f" * 5000, "9" * 5000, "1_0"),
    *(
        "[" * 2000,
        "{a=" * 2000,
        '"\\u001b[31m"',
        '"""\na"""',
        "9223372036854775808",
        '"' + "m" * 9999,
    ),
)


def case(rng: np.random.Generator, folder: Path) -> Outcome:
    content = GOOD_FILE.encode()
    if rng.random() < 0.6:
        content = damaged(rng, content)
    lines = content.split(b"\n")
    names = [o.name for o in options()] + [o.metadata["group"] for o in options()]
    for _ in range(int(rng.integers(0, 4))):
        name, value = names[rng.integers(len(names))], VALUES[rng.integers(len(VALUES))]
        lines.insert(int(rng.integers(len(lines) + 1)), f"{name} = {value}".encode())
    path = folder / "run.toml"
    path.write_bytes(b"\n".join(lines))
    return refused(lambda: from_toml(str(path)), "run.toml")[1]
