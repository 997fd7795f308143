"""The `apparate` command. May import the services, lazily, so that `--help` needs none of their dependencies."""
