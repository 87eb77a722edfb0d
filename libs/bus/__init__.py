"""The bus: connections, messages, and what happens to one that fails, each decided once.

`connect` and `broker` open connections, `streams` makes every stream and consumer, `messages` turns models into
CloudEvents and back, `outbox` publishes with acknowledgement, `settle` consumes in batches with the one failure
policy, `queries` answers and asks questions, `cursors` remembers small positions.
"""
