"""The policy of a pool's cycles, and what dry runs know beside the state, from the settings that two services share."""

from libs.core.explain.dry_run import DryRunInputs
from libs.core.placement.throughput import Chooser
from libs.core.scheduling.policy import Policy
from libs.service.files import read_classes, read_prices, read_throughputs
from libs.service.settings import CycleSettings


def dry_run_inputs(settings: CycleSettings) -> DryRunInputs:
    """Prices, rates and classes from their files, and the policy that orders and places by them. Raises BadFile."""
    prices = read_prices(settings.prices)
    table = read_throughputs(settings.throughputs)
    policy = Policy(reserve_after_us=int(settings.reserve_after_s * 1e6), chooser=Chooser(table, prices.of))
    if settings.classes is None:
        return DryRunInputs(prices, table, policy=policy)
    return DryRunInputs(prices, table, read_classes(settings.classes), policy)
