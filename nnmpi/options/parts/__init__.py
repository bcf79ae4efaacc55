"""The options of add-ons, a file for each, whose `PART` has their fields of `Config` and features.

A file goes with its add-on (`nnmpi/addons.py`). It is here and not in the add-on's folder, so that
`import nnmpi` loads nothing else of it. Its fields are given by keyword only.
"""
