"""Options of runs and commands: `Config`, the command line and the TOML files that set it, and the
quoting of users' texts in messages. The effect of an option is in the packages that use it."""
