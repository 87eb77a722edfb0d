"""Which gangs are told when they start, and when.

**What it decides.** Of the gangs that wait, the first of each class and team that does not fit is told a time. One that
is ordered by numbers gets the promise of `precedence.promise`, which is kept because others give way to it in time. Any
other is told when enough of what runs will have ended in nine of ten cases, which the devices that are kept for it
(`reservation`) lead to. A promise is told again, for a later time, only when something came that moves it: a fault, a
higher class, a drain; once a minute at the most, and only when it moves by a minute.

**What is pure.** All of it. **What it leaves to its caller.** Writing `gang.promised` (`decider`, at ticks), and keeping
devices.
"""

from libs.core.scheduling.promises.tell import new_promises

__all__ = ["new_promises"]
