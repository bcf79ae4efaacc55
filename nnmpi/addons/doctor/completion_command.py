"""The command `python -m nnmpi.completion`: prints a script by which bash or zsh completes `nnmpi`.

Put `source <(nnmpi completion bash)` into ~/.bashrc, or `source <(nnmpi completion zsh)` into
~/.zshrc.
"""

import argparse
import importlib
from collections.abc import Iterable, Iterator, Sequence

from nnmpi.commands import COMMANDS
from nnmpi.data import DATASETS, MORE_DATASETS
from nnmpi.nn.models import MODELS
from nnmpi.options import cli
from nnmpi.options.config import options
from nnmpi.options.value_forms import LOGGERS

NAMES = {
    "model": MODELS,
    "data": [*DATASETS, *MORE_DATASETS.where],
    "logger": [f"{name}:" for name in LOGGERS],
}
"""Values that completion offers for options without a fixed list of choices."""

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
    """The parser of the command line."""
    p = cli.Parser("nnmpi.completion", description="Print the completion script of a shell.")
    p.add_argument("shell", choices=("bash", "zsh"))
    return p


def script(shell: str) -> str:
    """The completion script of a shell, for commands, options and their values, otherwise files."""
    cases = list[str]()
    for name, command in COMMANDS.items():
        cases += _cases(name, importlib.import_module(command.parser).parser())
    cases.append(_case("*", [*COMMANDS, "--help", "--version"]))
    return ZSH * (shell == "zsh") + SCRIPT.format(cases="\n".join(cases))


def _cases(path: str, p: argparse.ArgumentParser) -> Iterator[str]:
    """Yields the `case` branches of a command and its subcommands, of which the shell takes the
    first that matches: for the values of flags, then for subcommands, then for flags and
    arguments."""
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
    """The `case` branch that offers `words` after what the pattern `line` matches."""
    return f'        {line}) words="{" ".join(words)}" ;;'


def command(given: argparse.Namespace) -> int:
    """Prints the completion script."""
    print(script(given.shell), end="", flush=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return cli.main(parser(), command, arguments)
