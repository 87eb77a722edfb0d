"""Who comes first within a class, as a rule that an operator chooses: by what a job got so far and what is left of it.

| file | what it answers |
|---|---|
| `rules.py` | the rules, and the number that each gives a job |
| `learned.py` | how much service one more end costs, learned from the jobs that ended (Gittins index) |
| `history.py` | how long jobs run by whose they are, what they are called and how wide they are |
| `served.py` | what each job got, as arrays |
| `job_numbers.py` | the number of each job at a moment, how much is left of it, and when it gives way |
| `queue_rules.py` | which rule orders the jobs of each team |
| `ageing.py` | which waiting jobs are due, and come before all of their class |
| `turns.py` | `Precedence`: folds the ledger into these, and keeps each queue in its order |
| `numbered.py` | the lines of queues that are ordered by numbers |
| `keep.py` | what of all this a snapshot has |
| `exchange.py` | who gives way to whom within a class |
| `moves.py` | who goes elsewhere, so that a gang finds room |
| `promise.py` | when the first gang that waits will start |
| `promised.py` | which gangs were promised a start, and what became of it |
| `remaining.py` | how long a running job still takes |

**What it leaves to its caller.** The order between classes and teams (`order`), whether a job fits (`placement`), and the
validation of plans (`preemption.check`). A decider without a `Precedence` orders as `order` says: the share of the team, then
age.
"""

from libs.core.scheduling.precedence.rules import DEFAULT_RULE, OrderKnobs, OrderRule
from libs.core.scheduling.precedence.turns import Precedence

__all__ = ["DEFAULT_RULE", "OrderKnobs", "OrderRule", "Precedence"]
