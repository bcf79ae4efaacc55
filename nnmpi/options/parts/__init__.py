"""The options of add-ons, a file for each: `Options`, which `Config` inherits, and `FEATURES`.

A file goes with its add-on (`nnmpi/addons.py`). It is here and not in the add-on's folder, so that
`import nnmpi` loads nothing else of it.
"""
