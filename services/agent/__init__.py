"""The agent: runs on every node, makes what runs there equal to what placement wants there, and reports what it saw.

`reconcile.plan` decides, `node.Node` carries it out with `parts` (processes or timers), `reports` tells the pool's
inbox. The `keeper` owns the processes: it ends the work of a node whose lease has ended, and holds it while the agent is
away. `takeover` finds what an earlier agent left. `app` wires it.
"""
