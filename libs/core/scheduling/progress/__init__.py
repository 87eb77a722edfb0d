"""How far a running job is, and how long it still takes.

**What it decides.** Whether a job's word of its steps is believed, at what rate they go, and when that is worth telling. A job
says `step` of `steps`; when it did is the agent's clock. What is left is the steps left at the rate of the last half of the
time, with a spread from how much that rate varied. A step that goes back, jumps or is beyond the total ends belief for the
attempt, and so does a job that has done all its steps and runs on: what is left of it is learned from others then. So a
report says something for the job only as long as the job does what it says.

**What is pure.** All of it: times are arguments.

**What it leaves to its callers.** Reading the file (`services/agent`), and what is made of the answer (`precedence`, the CLI).
"""

from libs.core.scheduling.progress.gauge import SAMPLE_S, Gauge
from libs.core.scheduling.progress.left import TimeLeft, believed, left_now

__all__ = ["SAMPLE_S", "Gauge", "TimeLeft", "believed", "left_now"]
