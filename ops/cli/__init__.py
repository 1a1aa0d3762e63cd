"""The `quire` command: one file per subcommand, each with `add_to(subcommands)`."""
