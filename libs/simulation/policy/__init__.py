"""The production decider in virtual time: a workload, a fleet and a rule in, waits and completion times out.

`engine` drives `libs.core.scheduling.decider.Decider`, the object that the placement service drives, with the messages that
services would send (admission, agents, preemption); there is no bus, and time is a number. `workload` makes requests of rows;
`measure` makes figures of what happened.
"""
