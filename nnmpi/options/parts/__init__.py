"""The options of add-ons (optional parts of the library). Each file has a `PART`, with the add-on's
fields of `Config` and its features (which options can be combined).

A file belongs to an add-on (`nnmpi/addons.py`). It is here and not in the add-on's folder, so that
`import nnmpi` loads nothing else of the add-on. Its fields are keyword-only.
"""
