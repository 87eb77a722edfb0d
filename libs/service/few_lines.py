"""A bound for log lines that somebody outside can bring about, so that who sends what cannot be read fills no log: `baton up`
keeps some 32 MiB of each, and what was there before is gone."""

import logging

from libs.core.admission.intake import Bucket
from libs.ports import clock

LINES, LINES_PER_S = 10, 1 / 60


class FewLines(logging.Filter):
    """Lets `LINES` through at once and then one a minute, which says how many were left out before it."""

    def __init__(self) -> None:
        super().__init__()
        self._bucket, self._left_out = Bucket(LINES, 0), 0

    def filter(self, record: logging.LogRecord) -> bool:
        if self._bucket.take(LINES, LINES_PER_S, int(clock.boot_s() * 1e6)):
            self._left_out += 1
            return False
        if self._left_out:
            record.msg, record.args = f"{record.getMessage()} ({self._left_out} such lines were left out before)", None
        self._left_out = 0
        return True


def few_lines(name: str) -> logging.Logger:
    """A logger of that bound."""
    log = logging.getLogger(name)
    if not any(isinstance(one, FewLines) for one in log.filters):
        log.addFilter(FewLines())
    return log
