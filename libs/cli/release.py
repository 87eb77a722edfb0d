"""The release number, in its own module so that `baton --version` imports nothing else."""

from importlib.metadata import PackageNotFoundError, version


def tool() -> str:
    """This tool with its version."""
    try:
        return f"baton {version('baton')}"[:64]
    except PackageNotFoundError:
        return "baton"
