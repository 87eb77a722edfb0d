"""Every number that weighs one thing against another in placement, with its meaning and where it comes from.

All costs are in *milli*: thousandths of a device's compute, of requests to come that could no longer be served. A weight
of 1 means that the two sides count alike. Those marked *measured* were set once on the openb lists of Alibaba's trace
(docs/placement.md, "Measured") and hold for every pool; those marked *judged* are an operator's trade-off, and no
benchmark tells the right one.

Kernels take these as arguments and never read them as globals: numba's cache would keep the old numbers.
"""

from typing import Final

# ------------------------------------------------------------------------- which node: the score (`scorer`, `kernels`)

CLASS_PRICE: Final = 3.0
"""What a device costs of a class that other requests need more, per unit of its price rho in [0, 1]. Measured: above 1
because rho is the price of the marginal device, and the requests bound to a class lose all of it."""

BLOCK_PRICE: Final = 0.3
"""What breaking a block of idle devices costs, per unit of its price beta in [0, 1] and per device of the block. Measured:
blocks of 8, 4 and 2 are nested, so breaking one of 8 pays three times."""

FRAGMENTATION: Final = 0.1
"""How much of a state's value its fragmentation takes away: F of FGD (Weng et al., USENIX ATC '23, section 4). Measured:
most of what F says is in the value already; a tenth of it breaks ties well."""

BLOCKS: Final = (8, 4, 2)
"""Sizes of blocks that have prices, devices: what gangs within one node ask for."""

# --------------------------------------------------------------------------- prices of classes (`kernels.clear`)

MARKET_ROUNDS: Final = 200
"""Rounds of price adjustment; the mean of the last half is taken, because single rounds swing."""
MARKET_STEP: Final = 0.2
"""How far a price moves in the first round when demand is twice the room."""
MARKET_COOLING: Final = 0.05
"""How fast steps shrink: by 1 / (1 + cooling x round)."""
MARKET_TASTE: Final = 0.1
"""Price difference at which a class is bought e times less: small, as requests take the cheapest class they accept."""

# ------------------------------------------------------------------------------------------ the mix of requests (`mix`)

PRIOR_ARRIVALS: Final = 500
"""Arrivals that a given prior counts as. Judged: what comes outweighs what was expected within a day."""
TURNOVER_ARRIVALS: Final = 200
"""Arrivals that the first guess of the turnover (all places come back) counts as. Judged."""
MIX_HORIZON: Final = 50_000
"""Arrivals after which all counts are halved, so that what a pool was used for long ago fades. Judged."""
MOST_KINDS: Final = 512
"""Kinds of request kept in a sample: the rarest beyond are left out."""

# -------------------------------------------------------------------------------------- data on the way (`choice`)

MILLI_PER_SECOND: Final = 10.0
"""What a second of fetching images and data counts, milli. Judged: a hundred seconds weigh as much as a device that
nobody else could use."""

# ------------------------------------------------------------------ which model, when a job names none (`models`)

MEMORY_LEFT_OVER: Final = 0.5
"""How much dearer a model counts when all of its memory would be left over. Judged: a device whose memory goes to waste
is worth half as much again to somebody who needs it."""
REQUESTS_LOST: Final = 0.5
"""How much dearer a model counts per unit of compute that requests to come lose for each unit placed there (the score of
its best node). Judged, as above."""
