"""Options of runs and commands: their fields, values, files and error messages.

Here: `Config` and the checks of its values, the command line and the TOML files that set it,
objects that users name as package.module:NAME, and the quoting of users' texts in messages.
Not here: the effect of an option, which other rooms decide.
"""
