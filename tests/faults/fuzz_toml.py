"""TOML files of options with damaged text, with values of any type, and with code."""

from pathlib import Path

import numpy as np
from fuzzing import Fault, Outcome, damaged, refused

from nnmpi import train
from nnmpi.options.config import options
from nnmpi.options.user_code import is_named

GOOD_FILE = """# a run
model = "iris-mlp"
data = 'iris'
[training]
epochs = 3
batch-size = 16
lr = 1e-2
lr_schedule = "warmup:5+cosine"
[reduce]
allreduce = "ring"
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
CODE = ("os:abort", "a.b.c:f", "__main__:x", "\u00e9:f", "os:abort:x", "os.:abort", ":f", "mlp:f")


def case(rng: np.random.Generator, folder: Path) -> Outcome:
    content = GOOD_FILE.encode()
    if rng.random() < 0.2:
        code = CODE[rng.integers(len(CODE))].encode()
        content = content.replace((b"iris-mlp", b"ring")[rng.integers(2)], code)
    elif rng.random() < 0.6:
        content = damaged(rng, content)
    lines = content.split(b"\n")
    names = [o.name for o in options()] + [o.metadata["group"] for o in options()]
    for _ in range(int(rng.integers(0, 4))):
        name, value = names[rng.integers(len(names))], VALUES[rng.integers(len(VALUES))]
        lines.insert(int(rng.integers(len(lines) + 1)), f"{name} = {value}".encode())
    path = folder / "run.toml"
    path.write_bytes(b"\n".join(lines))
    found, outcome = refused(lambda: train.config([f"--config={path}"]), "run.toml")
    if found and (is_named(found.model) or is_named(found.allreduce)):
        return Outcome(Fault.WRONG, "a file named code that would be imported")
    return outcome
