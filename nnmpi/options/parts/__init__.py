"""The options of add-ons (optional parts of the library). Each file has a `PART`, with the add-on's
fields of `Config` and its features (which options can be combined).

A file here belongs to an add-on (see `nnmpi/addons/`), but is not in the add-on's own
folder, so that `import nnmpi` loads nothing else of the add-on. The fields are keyword-only.
"""
