"""Which values of a job look like secrets, so that who submits it can be warned. Nothing is refused: a guess may be wrong.

A spec is no place for secrets. It is told to every user of the team and to operators, and stays in the ledger, its archives and
the history for as long as these are kept.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

_NAME = re.compile(
    r"(^|_)(API_?KEY|ACCESS_KEY|ACCOUNT_KEY|AUTH|CREDENTIALS?|PASS|PASSPHRASE|PASSWD|PASSWORD|PRIVATE_KEY|SECRET|SECRET_KEY|"
    r"TOKEN)(_ID)?$",
    re.IGNORECASE,
)
_LEAST = 8
"""Characters: what is shorter is a word or a number."""

_VALUE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\b(AKIA|ASIA)[0-9A-Z]{16}\b"  # AWS
    r"|\b(gh[pousr]_[0-9A-Za-z]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,})"
    r"|\bhf_[0-9A-Za-z]{30,}"
    r"|\bsk-[\w-]{20,}"
    r"|\bxox[abprs]-[\w-]{10,}"
    r"|\bAIza[\w-]{35}"
    r"|\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+"  # a JSON web token
    r"|://[^/\s:@]+:[^/\s@]{4,}@"  # a password in a URL
)


def suspects(env: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """The fields of a spec that look like secrets, e.g. `env.HF_TOKEN`, in order. Their values are not told."""
    return [*_in_env(env), *(f"command.{i}" for i, word in enumerate(command) if _VALUE.search(word))]


def _in_env(env: Mapping[str, str]) -> Iterator[str]:
    for name, value in env.items():
        if _VALUE.search(value) or (_NAME.search(name) and _may_be_one(value)):
            yield f"env.{name}"


def _may_be_one(value: str) -> bool:
    """A path says where a secret is, which is how it should be; so does what is filled in later."""
    return (
        len(value) >= _LEAST
        and not re.search(r"\s", value)
        and not value.startswith(("/", "./", "~", "$", "<", "file:"))
    )
