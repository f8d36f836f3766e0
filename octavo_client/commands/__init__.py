"""The subcommands of `octavo`, one file each: `configure(parser)` adds arguments, `run(arguments)` works.

Owns nothing itself; importing it imports no command. Invariant: a command's module name is its name.
"""
