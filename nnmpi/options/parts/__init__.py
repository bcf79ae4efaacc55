"""The options of add-ons, one file for each, whose `PART` has their fields of `Config` and
features.

A file belongs to an add-on (`nnmpi/addons.py`). It is here and not in the add-on's folder, so that
`import nnmpi` loads nothing else of the add-on. Its fields are keyword-only.
"""
