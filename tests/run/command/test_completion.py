"""`nnmpi completion`: what bash and zsh offer."""

from helpers.completion import completed, in_each_shell


@in_each_shell
def test_completion_knows_commands_options_and_values(shell: str) -> None:
    assert completed("nnmpi tra", shell) == ["train"]
    assert completed("nnmpi train --dty", shell) == ["--dtype"]
    assert completed("nnmpi train --device ", shell) == ["cpu", "cuda", "auto"]
    assert completed("nnmpi train --device = c", shell) == ["cpu", "cuda"]  # bash's words
    assert completed("nnmpi train --device=c", shell) == ["--device=cpu", "--device=cuda"]  # zsh's
    assert completed("nnmpi train --model ir", shell) == ["iris-mlp"]
    assert completed("nnmpi train --data ir", shell) == ["iris"]
    assert completed("nnmpi train --epochs 1 --allreduce r", shell) == ["ring"]
    assert completed("nnmpi train --save ", shell) == []  # of files, by the shell
