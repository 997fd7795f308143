"""`python -m apparate.cli`: the same as the `apparate` command."""

from apparate.cli.main import main

main()
