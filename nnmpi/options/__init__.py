"""Options of a run and of commands: their fields, texts, files and messages.

Here: `Config` and the checks of its values, the command line and the TOML files that set it, what
users name as package.module:NAME, and texts of users as they are shown in messages.
Not here: what an option does, which the rooms above decide.
"""
