"""The agent: runs on every node, makes what runs there equal to what placement wants there, and reports what it saw.

`reconcile.plan` decides, `node.Node` carries it out with `parts` (processes or timers), `reports` tells the pool's
inbox, `lease` and the `guard` process end the work of a node that is cut off. `app` wires it.
"""
