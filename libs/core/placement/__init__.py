"""Where a job runs: all its devices at once, as close together as they can be, or not at all.

`find.find(view, shape)` is what the placement service, preemption, dry-run and explain all call. It decides nothing about
order or priority; it never changes the view it is given. Agents and admission need `mig` alone: who imports that does not
wait for the placer's compiled kernels.
"""
