"""May this request enter a pool, and could the pool ever hold it? `evaluate` gives every objection at once; `route` says
which of several pools."""
