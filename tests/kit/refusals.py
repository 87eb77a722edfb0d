"""What the broker refused."""

from pathlib import Path


def refusals(state_dir: Path) -> list[str]:
    """What the broker refused to processes of this instance, by their logs."""
    logs = (state_dir / "logs").glob("*.log")
    return [line for log in logs for line in log.read_text().splitlines() if "permissions violation" in line.lower()]
