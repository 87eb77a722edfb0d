"""The keeper: a small process beside the agent that owns the processes of jobs. It survives the agent.

The agent decides, the keeper holds. An agent that crashes, is restarted or upgraded finds its work running: it connects
to the keeper's socket, is shown the table of attempts, and goes on (*adopts*). The keeper ends work by itself in one
case: the lease of a node has ended. It is started once and forks from itself, so no job costs an interpreter start.

- `server` is the keeper's loop, `table` what it knows (no I/O), `wire` the protocol, `contain` the kinds of containment.
- `zygote` is a fork of the keeper that forks the shims, with as few pages touched as can be.
- `shim` holds one attempt. It starts the attempt's processes and holds all of them: as the first process of a pid namespace,
  or as their subreaper, in a cgroup where there is one.
- `walls` are what the shim goes behind, `prepared` how that is had cheaply.
- `client` and `find` are the agent's side.

The keeper and its shims import nothing but a few modules of the standard library: a fork copies what they hold.
"""
