"""`python -m libs.cli`: the same as `baton`."""

from libs.cli.main import main

main()
