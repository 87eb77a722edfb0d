"""Every failpoint, and dangerous states. A run over many seeds in which one was never reached proves too little."""

FAILPOINTS: tuple[str, ...] = (
    "writer.folded",  # the state is read, nothing told yet
    "writer.decided",  # a record is made, not sent
    "writer.answered",  # the broker has answered, nobody knows yet
    "writer.told",  # nodes have heard
    "settle.decided",  # a request is judged, nothing is stored
    "settle.stored",  # what follows is stored, the request is not acknowledged
    "follower.applied",  # a batch is folded, its effects are to come
    "follower.done",  # its effects are done, nothing is saved
    "feed.stored",  # teams were told, the cursor stands where it was
    "snapshots.found",  # a snapshot is chosen, and not read yet
    "documents.saved",  # documents are written, the checkpoint stands where it was
    "projector.written",  # Redis has it
    "preemption.planned",  # a plan is made, not sent
    "preemption.sent",  # it is stored, and forgotten
    "leases.tick",  # nothing of this second is sent
    "archive.written",  # the file is whole, nobody has compared it
    "archive.checked",  # it is what the ledger has, the segment is still there
    "archive.deleted",  # it is gone, nobody was told
    "vault.loaded",  # a team's secrets are read, and about to be changed
    "vault.changed",  # a team's secrets are stored, nobody was told
    "vault.rekeying",  # some values are under the new key, some under the old
    "agent.starting",  # nothing runs yet
    "agent.started",  # it runs, nobody was told
    "agent.reported",  # it is stored, the agent does not know
    "agent.killed-all",  # a life is over, the next has no number yet
)

STATES: tuple[str, ...] = (
    "a client dropped what it was told",
    "a fault began at a failpoint",
    "a device was in quarantine",
    "a granter of leases was deaf",
    "a key was sent with two bodies",
    "a message came again while the first of it was being stored",
    "a message was stored, and its sender told that it was not",
    "a node ended what was over its time limit",
    "a node was declared dead",
    "a node's disk was restored",
    "a process stood still at a failpoint",
    "a process was frozen",
    "a service's clock jumped",
    "a stream was full",
    "a writer of the ledger came too late",
    "a writer's connection broke",
    "an agent died while jobs ran",
    "an agent was frozen while jobs ran",
    "an agent went on",
    "an agent went on with an earlier one's work",
    "a budget was spent while jobs ran",
    "a budget was topped up",
    "a job told how far it is",
    "a job was boosted",
    "a quota was set",
    "a team was suspended",
    "a reader needed what was archived",
    "a secret was given to a node",
    "a segment was deleted",
    "an archived segment was damaged",
    "an archived segment was restored",
    "an older version read along",
    "budgets were applied",
    "cut off both ways",
    "cut off one way",
    "messages were late",
    "messages were lost",
    "messages were lost all the time",
    "messages were repeated",
    "old input came again",
    "prices were applied",
    "queues were applied",
    "snapshots: another version",
    "snapshots: lost",
    "snapshots: rotten",
    "segments were archived",
    "the broker was frozen",
    "the broker's clock jumped",
    "the broker's disk was full",
    "the broker's disk was slow",
    "the ledger went on in another segment",
    "the master key was changed",
    "what a queue lent came back",
)
"""Dangerous states that seeds must have reached as well: what is drawn is not yet what happens."""
