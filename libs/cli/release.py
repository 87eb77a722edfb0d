"""Which release this is. By itself, so that `baton --version` imports nothing else."""

from importlib.metadata import PackageNotFoundError, version


def tool() -> str:
    """What acts, with its version."""
    try:
        return f"baton {version('baton')}"[:64]
    except PackageNotFoundError:
        return "baton"
