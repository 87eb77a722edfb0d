"""Writes docs/job-spec.md from the schema: `python -m libs.cli.jobspec_doc`. A test fails when it is out of date."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from schemas.jobs import JobSpec

_ANY_TEXT = 65_536  # the limit of every text, not worth repeating in each line
PAGE = Path(__file__).parents[2] / "docs/job-spec.md"

_HEAD = """# Job files

<!-- Written by `python -m libs.cli.jobspec_doc` from schemas/jobs.py and schemas/resources.py; do not edit. -->

`baton submit -f job.yaml` submits one job for each document of the file. The smallest:

```yaml
command: [python, train.py]
```

A larger one:

```yaml
key: nightly-42                # your own name for this job: the same file again is the same job
name: llm-pretrain
gpus: H100:8@70GiB             # short for resources.types, resources.devices, resources.memory_mib
command: [python, train.py, --lr, 3e-4]
env: {DATASET: /data/c4}
priority_class: production
resources:
  topology: {level: node, policy: required}
checkpoint: {signal: SIGUSR1, grace_s: 60, interval_s: 600}
retry: {on_lost: 3, on_failure: 1}
time_limit_s: 86400
```

Check a file without sending it: `baton submit -f job.yaml --dry-run`. Every problem is told at once, with file, line and
column, the nearest known name for a misspelt field, and the fix.

## What a file adds to the schema

These belong to files and to the command line; in a message (see [submit-from-anywhere.md](submit-from-anywhere.md)) there are
only the fields of the tables below.

| field | meaning |
|---|---|
| `key` | The client key, 1 to 256 characters: your own name for the job, unique in your team. Random without it. |
| `team` | Whose job it is; `--team` and BATON_TEAM say the same. |
| `gpus` | `[type:]count[@memory]`, e.g. `4`, `H100:4`, `gpu:a100:8`, `H100:2@40GiB`; here or inside `resources`. |
| `resources.memory` | An amount with its unit, e.g. `40GiB` or `80GB` (10^9), rounded up to `memory_mib`. |
| `secret` | One name of a secret: short for `secrets: [{secret: NAME}]`. In `secrets` a name alone will do, too. |
| `env.VARIABLE.secret` | `HF_TOKEN: {secret: hf-token}` is short for `secrets: [{secret: hf-token, env: HF_TOKEN}]`. |

A spec is no place for the values of secrets: every user of the team and the operators can read it, and it stays in the ledger.
`baton submit` warns of values that look like one, and refuses none. `baton secret set hf-token` gives the team a secret, and
`secret: hf-token` lets a job read it from the file `$BATON_SECRETS_DIR/hf-token` ([security.md](security.md#secrets)).

Arguments of `command`, values of `env` and of `resources.labels` are text as they are written: `0.10` stays `0.10`, `on` stays
`on`. Elsewhere a number is decimal. Anchors, aliases, tags and repeated keys are refused; a file has at most 256 KiB.

## How to ask for a place

The tables below list every field; this is what the less common ones are for. Each may be left out.

```yaml
# An elastic training: 16 devices at best, 8 will do. It stays within one leaf for ten minutes, then goes wider.
command: [python, train.py]
resources:
  devices: 16
  min_devices: 8
  types: [H200, H100]
  objective: finish              # the type on which this family, as measured, ends soonest; cost: the cheapest per step
  family: llama-70b
  topology: {level: leaf, policy: preferred, widen_after_s: 600}
  cpu_milli: 12000               # 12 processors and 128 GiB of host memory for each device
  host_memory_mib: 131072
```

```yaml
# A nested gang: 8 tensor-parallel groups of 8, each on one NVLink island, with two judges of another type. All of it
# starts together or not at all; `devices` is the sum and is left out.
command: [python, train.py]
resources:
  topology: {level: spine, policy: required}
  roles:
    - {name: trainer, count: 8, min_count: 4, devices: 8, types: [H100], topology: {level: nvlink, policy: required}}
    - {name: judge, count: 2, devices: 1, types: [L40S], cpu_milli: 4000}
```

Each process of a nested gang serves one role and finds this in its environment, beside RANK and WORLD_SIZE, which count all
roles one after the other as the job lists them:

| variable | meaning |
|---|---|
| `BATON_ROLE` | the role that it serves |
| `BATON_ROLE_RANK`, `BATON_ROLE_WORLD_SIZE` | its rank among the processes of its role, and how many there are |
| `BATON_ROLE_HOSTS_<ROLE>` | for every role: its nodes in the order of its ranks, separated by commas |

In the name of a variable a role is in capitals, with `_` for anything but letters and digits: `BATON_ROLE_HOSTS_JUDGE_V2`.

With `launch: per-node` a node that serves two roles has a process for each, which sees the devices of its own role only.
`examples/roles.yaml` is a whole job of two roles that find each other.

```yaml
# A TPU slice: a box of 2 x 2 x 4 chips that lie next to each other in one torus.
command: [python, train.py]
resources: {types: [v5p], torus: [2, 2, 4]}
```

```yaml
# A replica of a service: never on one leaf with another replica of the same team and key. Its binary was built for CUDA,
# it computes in fp8, and it is ready sooner where its image is on the disk already.
command: [serve]
resources:
  runtime: cuda
  precision: fp8
  spread: {key: chat, level: leaf}
  contents: [{name: "sha256:9f86d081884c", size_mib: 18000}]
```

What is asked of the node beside its devices (`cpu_milli`, `host_memory_mib`) is kept for the job like a device is: a node
takes no more devices of it than it can serve, and a node that does not tell what it has serves none. When processors are
short on a node, a job has its share of them by `cpu_milli`, or by its devices where that is more
([jobs-walls.md](jobs-walls.md#limits)).
`precision` looks at what hardware computes in; a format that would only be emulated counts as missing, a device model that
Baton does not know is allowed. Anti-affinity counts both ways: of two jobs with one key the wider level holds, whichever
came first. Where an operator has capped a rack's power (on each of its nodes: what one says ends with it), a granted device
counts its board's power limit, a share of one its part.
`limits` is what it may take of a node beside that: processes, open files, `/tmp`, disk. Nothing of it is reserved; it keeps
a mistake from harming whoever else runs there ([jobs-walls.md](jobs-walls.md#limits)).
What no node of the pool could ever serve is refused at once, with the value and the fix; everything else waits, and
`baton explain` names the constraint that keeps it waiting.
"""


def page() -> str:
    """The whole page."""
    schema = JobSpec.model_json_schema()
    sections = [_HEAD, *_sections(schema, schema.get("$defs", {}))]
    return "\n".join(sections).rstrip() + "\n"


def _sections(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[str]:
    """A table for the job and one for each object in it, in order of appearance."""
    waiting: list[tuple[str, Mapping[str, Any]]] = [("", schema)]
    seen = set()
    while waiting:
        path, node = waiting.pop(0)
        title = f"`{path}`" if path else "The job"
        yield f"## {title}\n\n{node.get('description', '').partition(chr(10) * 2)[0]}\n"
        yield "| field | type | default | meaning |\n|---|---|---|---|"
        for name, field in node["properties"].items():
            inner = _object(field, definitions)
            place = f"{path}.{name}".lstrip(".")
            if inner is not None and place not in seen:
                seen.add(place)
                waiting.append((place, inner))
            default = _default(field, name in node.get("required", ()))
            meaning = field.get("description", "") or _enum_doc(field, definitions)
            cells = (f"`{name}`", _type(field, definitions, place), default, meaning)
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        yield ""


def _object(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The object in a field, directly or as a list's items; None if there is none."""
    node = _target(field, definitions)
    node = _target(node.get("items", {}), definitions) if node.get("type") == "array" else node
    return node if "properties" in node else None


def _target(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a field's value: resolves references and optional values."""
    for branch in (field, *field.get("anyOf", ()), *field.get("allOf", ())):
        if "$ref" in branch:
            found: Mapping[str, Any] = definitions[branch["$ref"].rpartition("/")[2]]
            return found
    branches: list[Mapping[str, Any]] = [b for b in field.get("anyOf", ()) if b.get("type") != "null"]
    return branches[0] if branches else field


def _type(field: Mapping[str, Any], definitions: Mapping[str, Any], place: str) -> str:
    node = _target(field, definitions)
    if "properties" in node:
        return f"[{place}](#{place.replace('.', '')})"
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    kind = node.get("type", "")
    if kind == "array":
        return f"list of {_type(node.get('items', {}), definitions, place)}{_counts(node)}"
    if kind == "object":
        return f"names and text{_counts(node)}"
    words = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}
    return words.get(kind, kind) + _limits(node)


def _counts(node: Mapping[str, Any]) -> str:
    most = node.get("maxItems", node.get("maxProperties"))
    return f", at most {most}" if most else ""


def _limits(node: Mapping[str, Any]) -> str:
    parts = []
    for key, sign in (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<")):
        if key in node:
            parts.append(f"{sign} {node[key]:g}" if isinstance(node[key], float) else f"{sign} {node[key]}")
    if "pattern" in node:
        parts.append(f"like `{node['pattern']}`")
    if node.get("maxLength", _ANY_TEXT) < _ANY_TEXT:
        parts.append(f"at most {node['maxLength']} characters")
    return ", " + ", ".join(parts) if parts else ""


def _default(field: Mapping[str, Any], required: bool) -> str:
    if required:
        return "**required**"
    value = field.get("default")
    if isinstance(value, dict) or value is None:
        return "-"
    return "empty" if value in ("", [], ()) else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _enum_doc(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    node = _target(field, definitions)
    node = _target(node.get("items", {}), definitions) if node.get("type") == "array" else node
    return str(node.get("description", "")).partition("\n")[0]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
