"""The keeper: a small process beside the agent that owns the processes of jobs. It survives the agent.

The agent decides, the keeper holds. An agent that crashes, is restarted or upgraded finds its work running: it connects
to the keeper's socket, is shown the table of attempts, and goes on (*adopts*). The keeper ends work by itself in one
case: the lease of a node has ended. It is started once; no job costs an interpreter start.

- `server` is the keeper's loop, `table` what it knows (no I/O), `wire` the protocol, `contain` the kinds of containment.
- `native/` is the program that holds attempts, in C: a *zygote*, which forks a *shim* for each. A shim starts the attempt's
  processes and holds all of them: as the first process of a pid namespace, or as their subreaper, in a cgroup where there is
  one. It puts up the walls and goes behind them.
- `zygote` is the keeper's side of it, `spec` what the two say to each other.
- `walls` says what walls there can be, `callfilter` which system calls are refused behind them, `prepared` how a view is had
  cheaply.
- `client` and `find` are the agent's side.
"""
