"""`nnmpi completion`: what is offered of an add-on."""

from helpers.completion import completed, in_each_shell

from nnmpi.checkpoint import parser


@in_each_shell
def test_completion_knows_subcommands(shell: str) -> None:
    assert completed("nnmpi checkpoint ", shell)[-1] == "export"
    assert "export" in parser().format_help()
