"""What Prometheus sees of budgets, read from the state at each scrape."""

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from libs.core.state.model import State

_LABELS = ["whose", "unit", "period"]


class BudgetMetrics(Collector):
    """Register it once; `shown` gives the state and the ledger time of now, as soon as there is a state. In
    GPU-hours, or in money."""

    def __init__(self, shown: Callable[[], tuple[State, int] | None]) -> None:
        self._shown = shown

    def collect(self) -> Iterator[Metric]:
        if (shown := self._shown()) is None:
            return
        state, t_us = shown
        spent = GaugeMetricFamily("baton_budget_spent", "spent of a budget in its period", labels=_LABELS)
        left = GaugeMetricFamily(
            "baton_budget_available", "what a new grant may hold of a budget; negative: overdrawn", labels=_LABELS
        )
        limit = GaugeMetricFamily("baton_budget_limit", "hard limit, carried over and topped up", labels=_LABELS)
        soft = GaugeMetricFamily("baton_budget_soft_reached", "1 when the soft limit was reached", labels=_LABELS)
        for balance in list(state.budgets.balances.values()):
            about = balance.about
            whose = f"team:{about.team}" if about.team is not None else f"queue:{about.queue}"
            labels, scale = [whose, about.unit.value, about.period.value], balance.scale * 1_000_000
            spent.add_metric(labels, balance.spent(t_us) / scale)
            if (allowed := balance.allowed) is not None:
                limit.add_metric(labels, allowed / scale)
                left.add_metric(labels, (state.budgets.available(balance, t_us) or 0) / scale)
            if about.soft is not None:
                soft.add_metric(labels, float(balance.told > 0))
        yield from (spent, left, limit, soft)
