"""`baton diff -f FILE`: what applying a file of queues or budgets would change."""

from libs.cli.apply import compare

command = compare
