"""Files that services are started with, for tools that start them: wrong in the words of the service that would read it."""

from pathlib import Path

from libs.service.files import BadFile, read_prices
from libs.service.teams_file import load_intake, load_traffic

__all__ = ["BadFile", "check_prices", "check_quotas"]


def check_prices(path: Path, option: str) -> None:
    """Raises BadFile for a file that cannot be used; `option` names another."""
    read_prices(path, option)


def check_quotas(path: Path, option: str) -> None:
    """The same of the teams' file: admission, quota_billing and who holds the keys read it."""
    load_intake(path, option)
    load_traffic(path, option)
