"""The agent: runs on every node, brings what runs there in line with placement's desired state, and reports what it
observes.

`reconcile.plan` decides, `node.NodeRunner` carries it out with parts (processes or timers), `reports` publishes to the
pool's inbox. The `keeper` owns the processes: it ends the work of a node whose lease has ended, and holds it while the
agent is away. `takeover` finds what an earlier agent left. `app` wires it.
"""
