"""The `baton` command. `main.py` lists every command; each has a module of its own, loaded when it is called."""
