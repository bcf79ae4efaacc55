"""What a shell offers for words of a command line."""

import shutil
import subprocess

import pytest

from nnmpi.addons.doctor.completion_command import script

in_each_shell = pytest.mark.parametrize(
    "shell",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(not shutil.which(name), reason=f"{name} is not installed"),
        )
        for name in ("bash", "zsh")
    ],
)


def completed(words: str, shell: str = "bash") -> list[str]:
    """What the shell offers for the last of the words."""
    line = " ".join(f"'{word}'" for word in words.split(" "))
    ask = f"COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _nnmpi"
    calls = "emulate sh; setopt kshglob noshglob braceexpand\n" * (shell == "zsh")  # as it does
    text = f'{script(shell)}{calls}{ask}\nprintf "%s\\n" "${{COMPREPLY[@]}}"\n'
    run = subprocess.run(
        [shell], input=text, capture_output=True, check=True, text=True, timeout=60
    )
    assert run.stderr == ""
    last = words.rpartition(" ")[2]  # compgen of zsh leaves it to zsh to compare with it
    return [word for word in run.stdout.split() if shell != "zsh" or word.startswith(last)]
