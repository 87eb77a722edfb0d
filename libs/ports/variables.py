"""What is wrong in the variables of the environment that settings are read from."""

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings


def wrong_variables(kind: type[BaseSettings], error: ValidationError) -> str:
    """Each of them by its name, and why, on one line."""
    prefix = kind.model_config["env_prefix"]
    return "; ".join(_problem(prefix, one) for one in error.errors(include_url=False))


def _problem(prefix: str, error: ErrorDetails) -> str:
    field = ".".join(map(str, error["loc"]))
    problem = error["msg"].removeprefix("Value error, ")
    if not field:  # of several settings together
        return problem
    return f"{field if field.startswith('BATON_') else (prefix + field).upper()}: {problem}"
