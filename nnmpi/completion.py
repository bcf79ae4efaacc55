"""The command `python -m nnmpi.completion`: what bash or zsh runs to complete `nnmpi ...`.

Put `source <(nnmpi completion bash)` into ~/.bashrc, or the same of zsh into ~/.zshrc.
"""

import argparse
import importlib
from collections.abc import Iterable, Iterator, Sequence

from nnmpi.commands import COMMANDS
from nnmpi.data import DATASETS
from nnmpi.nn.models import MODELS
from nnmpi.options import cli
from nnmpi.options.config import options
from nnmpi.options.terms import LOGGERS

NAMES = {"model": MODELS, "data": DATASETS, "logger": [f"{name}:" for name in LOGGERS]}
"""Values of options, besides files and code."""

ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"
SCRIPT = """_nnmpi() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} kept= words
    local line="${{COMP_WORDS[*]:1:$((COMP_CWORD - 1))}} "
    case $word in
        --*=*) line+="${{word%%=*}} " kept=${{word%%=*}}= word=${{word#*=}} ;;  # zsh
        =) word= ;;  # bash has words of its own for = and for what follows
    esac
    case ${{line%= }} in
{cases}
    esac
    COMPREPLY=($(compgen -P "$kept" -W "$words" -- "$word"))
    if [[ ${{COMPREPLY[*]}} == *: ]]; then compopt -o nospace 2>/dev/null; fi
}}
complete -o default -F _nnmpi nnmpi
"""


def parser() -> cli.Parser:
    """The options of the command."""
    p = cli.Parser("nnmpi.completion", description="Print the completion of a shell.")
    p.add_argument("shell", choices=("bash", "zsh"))
    return p


def script(shell: str) -> str:
    """The completion: commands, their options, and what these may be; else files."""
    cases = list[str]()
    for name, command in COMMANDS.items():
        cases += _cases(name, importlib.import_module(command.parser).parser())
    cases.append(_case("*", [*COMMANDS, "--help", "--version"]))
    return ZSH * (shell == "zsh") + SCRIPT.format(cases="\n".join(cases))


def _cases(path: str, p: argparse.ArgumentParser) -> Iterator[str]:
    """The cases of a command: the values of its flags, its subcommands, and its own words.

    The shell takes the first case that fits.
    """
    known = {o.name: o.metadata["choices"] for o in options()} | NAMES
    words = list[str]()
    for action in p._actions:
        choices = [str(choice) for choice in action.choices or known.get(action.dest) or ()]
        words += action.option_strings or choices
        for flag in action.option_strings if action.nargs != 0 else ():
            yield _case(f'"{path} "*"{flag} "', choices)
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from _cases(f"{path} {name}", sub)
    yield _case(f'"{path} "*', words)


def _case(line: str, words: Iterable[str]) -> str:
    """The case that offers these words after a command line of this pattern."""
    return f'        {line}) words="{" ".join(words)}" ;;'


def command(given: argparse.Namespace) -> int:
    """Prints the completion."""
    print(script(given.shell), end="", flush=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return cli.main(parser(), command, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
