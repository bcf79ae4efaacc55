"""Options of runs and commands: `Config` and the checks of its values, the command line and the
TOML files that set it, and the quoting of users' texts in messages. The effect of an option is in
the packages that use it."""
