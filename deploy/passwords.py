"""Makes the passwords that compose.yaml asks for, in `.env` beside it (mode 0600). Those that are there stay.

python3 deploy/passwords.py
"""

import os
import re
import secrets
import sys
from pathlib import Path

NAMES = (
    "BATON_HTTP_TOKEN",
    "BATON_AGENT_HTTP_TOKEN",
    "REDIS_PLACEMENT_PASSWORD",
    "REDIS_TELEMETRY_PASSWORD",
    "MONGO_ROOT_PASSWORD",
    "MONGO_HISTORY_PASSWORD",
    "MONGO_BILLS_PASSWORD",
    "GRAFANA_PASSWORD",
)


IN_URLS = ("REDIS_PLACEMENT_PASSWORD", "REDIS_TELEMETRY_PASSWORD", "MONGO_HISTORY_PASSWORD", "MONGO_BILLS_PASSWORD")
"""They stand in URLs and in Redis' list of users as they are."""


def make(file: Path) -> list[str]:
    """Adds what is missing to `file`; the names of what was made. Exits when one that is there would not do."""
    known = file.read_text() if file.exists() else ""
    lines = (line.partition("=") for line in known.splitlines())
    there = {name.strip(): value.strip().strip("\"'") for name, _, value in lines}
    if wrong := [name for name in IN_URLS if name in there and not re.fullmatch(r"[A-Za-z0-9._~,-]+", there[name])]:
        sys.exit(
            f"{', '.join(wrong)} in {file}: use letters, digits and . _ ~ , - alone, or remove the line for one to be made"
        )
    missing = [name for name in NAMES if name not in there]
    if missing:
        text = known + ("\n" if known and not known.endswith("\n") else "")
        text += "".join(f"{name}={secrets.token_hex(24)}\n" for name in missing)
        new = file.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text)
        new.replace(file)
    return missing


if __name__ == "__main__":
    made = make(Path(__file__).parents[1] / ".env")
    print(f"made in .env: {', '.join(made)}" if made else "every password is in .env already")
