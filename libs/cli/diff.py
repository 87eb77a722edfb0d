"""`baton diff -f FILE`: what applying a queue file would change."""

from libs.cli.apply import compare

command = compare
