"""Who gives way to whom. Pure: plans over a state in, answers out; who publishes and who records is the caller.

**What it decides.** A waiting job whose class may preempt (the beneficiary) does not fit now. Then whole gangs of lower
classes (the victims) give way, and the devices that this frees are held for the beneficiary. Nobody gives way unless the
whole placement then fits. A gang gives way as a whole, also its parts elsewhere.

**Which victims.** Compared in this order, the first difference decides:

1. the highest class that must give way, over all levels of topology that the beneficiary may span now: as long as
   experiments alone make room anywhere, no production job is touched, also when that needs a wider level;
2. the level of topology, nearest first: the choice is within one group of it (an island, a node, a leaf, ...);
3. the cost per class, compared class by class from the highest down: a costlier set of experiments is taken if it
   spares one production job more. Within a class cost alone decides (`cost.py`: the work that is lost, device-seconds);
4. fewer victims; then the ids, so that the choice is the same everywhere.

1 and 2 are exact. 3 is greedy within each group: victims are taken class by class from the lowest up, within a class by
cost per device that they free, until the beneficiary fits; a cheaper one of the same class is tried in place of the last;
then those that turn out not to be needed are given back, the highest class and the most expensive first. In the highest
class that is within the cost of one victim of the optimum of the set-cover problem below it, and exact where each victim
holds one device. The price: O(log victims) searches per group and those of the clean-up, a bounded number; groups whose
lower bound is not below the best so far are not searched.

| file | what it answers |
|---|---|
| `victims.py` | which plans there are now: beneficiaries in order, and whom each may ask |
| `cheapest.py` | the cheapest set of those whom it may ask that lets it in |
| `already_planned.py` | what earlier choices and pending plans count on, so that no two count on the same device |
| `index.py` | what victims would free where, and the least that a group can cost |
| `cost.py` | what giving way costs an attempt |
| `check.py` | whether a plan still holds in the present: the ledger's writer asks it, and only it decides |
| `pending.py` | what a planner must not plan again while its plans are on their way |

Whom a limit spares (`libs.core.scheduling.preemption_guard`) is nobody's victim.

**What it leaves to its caller.** Sending plans (`services.preemption`), recording the answer (`AttemptPreempting` and
`DevicesHeld`, or `PlanDeclined`), and waiting until the victims have saved their work.
"""

from libs.core.scheduling.preemption.already_planned import EVERYBODY
from libs.core.scheduling.preemption.check import Accepted, Declined, check, would_be_free
from libs.core.scheduling.preemption.cost import cost_device_s
from libs.core.scheduling.preemption.index import VictimIndex
from libs.core.scheduling.preemption.pending import PendingPlans, PlanAnswer
from libs.core.scheduling.preemption.victims import VictimChoice, choice_for, choices, next_turn_us, plans

__all__ = [
    "EVERYBODY",
    "Accepted",
    "Declined",
    "PendingPlans",
    "PlanAnswer",
    "VictimChoice",
    "VictimIndex",
    "check",
    "choice_for",
    "choices",
    "cost_device_s",
    "next_turn_us",
    "plans",
    "would_be_free",
]
