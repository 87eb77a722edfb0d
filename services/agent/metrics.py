"""The agent's metrics, read from its state at each scrape."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from libs.ports.clock import boot_s as now
from services.agent.agent import Agent
from services.agent.node import NodeCounts
from services.agent.reconcile import Phase


class AgentMetrics(Collector):
    """Costs nothing between scrapes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.agent: Agent | None = None
        self.counts = NodeCounts()
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        for name, text in (
            ("started", "parts that were seen running"),
            ("released", "parts of which nothing is left"),
            ("failed", "parts that ended by themselves with another exit code than 0"),
            ("refused", "parts that were not started: stale, occupied or unknown device"),
            ("checkpoints", "acknowledged checkpoints"),
            ("lives", "incarnations that nodes of this agent began"),
        ):
            yield CounterMetricFamily(f"baton_agent_{name}", text, value=getattr(self.counts, name))
        if self.agent is not None:
            yield from self._of(self.agent)

    def _of(self, agent: Agent) -> Iterable[Metric]:
        at = now()
        nodes = list(agent.nodes.values())
        held = [held for node in nodes for held in node.view.parts.values() if held.phase is not Phase.ENDED]
        leases = [node.lease.remaining(at) for node in nodes]
        for name, text, value in (
            ("nodes", "nodes that this agent hosts", len(nodes)),
            ("nodes_known", "nodes whose present life placement knows", sum(node.known for node in nodes)),
            ("parts", "parts on the nodes now", len(held)),
            ("lease_remaining_seconds", "shortest time until a node must stop its work", min(leases)),
            ("backlog", "observations that are not stored yet", agent.reports.backlog()),
            (
                "quarantined",
                "devices that something else than a job still uses",
                sum(len(n.quarantine.devices) for n in nodes),
            ),
            (
                "left_ledger_seq",
                "ledger record as of which nothing of a team that has left is kept here",
                agent.left.ledger_seq or 0,
            ),
            ("left_kept", "jobs of teams that have left whose files resist, or which run", agent.left.kept),
            ("keeper_up", "1 while the keeper answers or is not needed", int(agent.launcher.keeper_ok())),
        ):
            yield GaugeMetricFamily(f"baton_agent_{name}", text, value=value)
        yield CounterMetricFamily("baton_agent_observations", "observations stored", value=agent.reports.published)
        yield CounterMetricFamily(
            "baton_agent_left_removed", "jobs of teams that have left, whose files were removed", agent.left.removed
        )
        yield CounterMetricFamily(
            "baton_agent_unreadable", "desired states that could not be read", agent.asker.unreadable
        )
