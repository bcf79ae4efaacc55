"""Commands with names of the standard library's modules: `nnmpi.tokenize` is found here.

In `nnmpi/` itself the file would be taken for the standard library's wherever Python starts in that
folder. So `nnmpi/__init__.py` adds this folder to where submodules of `nnmpi` are looked for.
"""
