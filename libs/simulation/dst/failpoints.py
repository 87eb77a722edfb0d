"""Every failpoint, and the processes that have it. A run over many seeds in which one was never reached proves too little."""

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
    "agent.starting",  # nothing runs yet
    "agent.started",  # it runs, nobody was told
    "agent.reported",  # it is stored, the agent does not know
    "agent.killed-all",  # a life is over, the next has no number yet
)
