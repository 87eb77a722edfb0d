"""The golden files: one example of every released message, as it was on the wire. They are added to, never edited.

`<type>.json` has every field; `<type>~<what>.json` is a further example (another mode, an older shape).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "golden"


@dataclass(frozen=True, slots=True)
class Golden:
    """One file. `answer` is the payload of the reply to a request, or None."""

    name: str
    subject: str
    headers: dict[str, str]
    payload: Any
    answer_headers: dict[str, str]
    answer: Any

    @property
    def type(self) -> str:
        return self.name.split("~")[0]

    @property
    def wire(self) -> bytes:
        return json.dumps(self.payload).encode()


def load() -> list[Golden]:
    out = []
    for path in sorted(FOLDER.glob("*.json")):
        raw = json.loads(path.read_text("utf-8"))
        answer = raw.get("reply", {})
        out.append(
            Golden(
                path.stem,
                raw.get("subject", ""),
                raw["headers"],
                raw["payload"],
                answer.get("headers", {}),
                answer.get("payload"),
            )
        )
    return out


def lost(old: Any, new: Any, path: str = "$") -> list[str]:
    """What of `old` is missing or different in `new`; `new` may have more fields."""
    if isinstance(old, dict) and isinstance(new, dict):
        gone = [f"{path}.{key} is lost" for key in old if key not in new]
        return gone + [p for key in old if key in new for p in lost(old[key], new[key], f"{path}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [p for number, item in enumerate(old) for p in lost(item, new[number], f"{path}[{number}]")]
    return [] if old == new else [f"{path}: {old!r} became {new!r}"]
