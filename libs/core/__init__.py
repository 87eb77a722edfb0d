"""How Baton thinks: pure functions over data, with time and ids as arguments.

`cycle.py` tells the story of one scheduling cycle on a screen; `decide.py` says what each inbox message leads to;
`fold.py` is what each ledger event means. The live placement service, dry-run, explain and simulation all call these.
"""
