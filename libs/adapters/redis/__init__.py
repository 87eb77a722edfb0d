"""Redis as the ledger's present: a projection that carries the sequence it was applied up to, and fills again when lost.

`keys.py` spells the layout, `functions.lua` is all that writes, `projection.py` is the seam. Truth is the ledger; nobody
decides by what stands here.
"""

from libs.adapters.redis.projection import NeedRebuild, Projection

__all__ = ["NeedRebuild", "Projection"]
