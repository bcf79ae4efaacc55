"""The command `python -m nnmpi.completion`: what bash or zsh runs to complete `nnmpi ...`.

Put `source <(nnmpi completion bash)` into ~/.bashrc, or the same of zsh into ~/.zshrc.
"""

import argparse
import importlib
from collections.abc import Iterator, Sequence

from nnmpi import cli
from nnmpi.commands import COMMANDS
from nnmpi.config import options
from nnmpi.data import DATASETS
from nnmpi.nn.models import MODELS
from nnmpi.terms import LOGGERS

NAMES = {"model": MODELS, "data": DATASETS, "logger": [f"{name}:" for name in LOGGERS]}
"""What options may also be, beside files and code."""

ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"
SCRIPT = """_nnmpi() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} of= words= kept= i
    if [[ $word == --*=* ]]; then before=${{word%%=*}} kept=${{word%%=*}}= word=${{word#*=}}  # zsh
    elif [[ $word == = ]]; then word=
    elif [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD-2]}}; fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$of ${{COMP_WORDS[i]}}" in {commands}) of="$of ${{COMP_WORDS[i]}}" ;; esac
    done
    case "$of $before" in
{values}
        *) case "$of" in
{words}
        esac ;;
    esac
    COMPREPLY=($(compgen -P "$kept" -W "$words" -- "$word"))
    if [[ ${{COMPREPLY[*]}} == *: ]]; then compopt -o nospace 2>/dev/null; fi
}}
complete -o default -F _nnmpi nnmpi
"""


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    p = cli.Parser(
        prog=cli.called("nnmpi.completion"), description="Print the completion of a shell."
    )
    p.add_argument("shell", choices=("bash", "zsh"))
    return p


def script(shell: str) -> str:
    """The completion: commands, their options, and what these may be; else files."""
    found: dict[str, list[str]] = {"": [*COMMANDS, "--help", "--version"]}
    values: dict[str, list[str]] = {}
    for name, command in COMMANDS.items():
        made: argparse.ArgumentParser = importlib.import_module(command.parser).parser()
        for path, words, of_flags in _walk(f" {name}", made):
            found[path] = words
            values |= {f"{path} {flag}": choices for flag, choices in of_flags.items()}
    alike: dict[str, list[str]] = {}
    for pattern, choices in values.items():
        alike.setdefault(" ".join(choices), []).append(f'"{pattern}"')
    return ZSH * (shell == "zsh") + SCRIPT.format(
        commands="|".join(f'"{path}"' for path in found if path),
        values="\n".join(f'        {"|".join(p)}) words="{c}" ;;' for c, p in alike.items()),
        words="\n".join(f'        "{p}") words="{" ".join(w)}" ;;' for p, w in found.items()),
    )


def _walk(
    path: str, p: argparse.ArgumentParser
) -> Iterator[tuple[str, list[str], dict[str, list[str]]]]:
    """Of a command and of those below it: the words that may follow, and for each flag with a value
    what that may be."""
    known = {o.name: o.metadata["choices"] for o in options()} | NAMES
    words, values = list[str](), dict[str, list[str]]()
    for action in p._actions:
        choices = [str(one) for one in action.choices or known.get(action.dest) or ()]
        words += action.option_strings or choices
        if action.nargs != 0:
            values |= dict.fromkeys(action.option_strings, choices)
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from _walk(f"{path} {name}", sub)
    yield path, words, values


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""

    def command() -> int:
        print(script(parser().parse_args(arguments).shell), end="", flush=True)
        return 0

    return cli.run("nnmpi.completion", command)


if __name__ == "__main__":
    raise SystemExit(main())
