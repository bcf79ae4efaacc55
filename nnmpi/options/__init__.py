"""Options of runs and commands: their fields, values, files and error messages.

This folder has `Config` and the checks of its values, the command line and the TOML files that set
it, objects that users name as package.module:NAME, and the quoting of users' texts in messages. The
effect of an option is in the packages that use it.
"""
