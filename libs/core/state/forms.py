"""What a job's spec is kept as: a form that it shares with others, and what is its own in one string of bytes.

Most jobs of a team differ in their names, arguments and lengths alone. A spec of its own takes 1,000 bytes, its own part 90;
of a hundred thousand jobs that wait, that is most of what a reader of the ledger keeps. A spec is made again whenever it is
asked for, which takes some microseconds.
"""

import marshal
from typing import Any
from weakref import WeakValueDictionary

from pydantic import BaseModel

from schemas.jobs import JobSpec, Simulation

OWN = ("name", "command", "env", "workdir", "stop_grace_s", "time_limit_s", "simulation")
"""The fields in which jobs of one form may differ; whether there is a `simulation` at all is of the form."""
_SHARED = tuple(name for name in JobSpec.model_fields if name not in OWN)
Rest = tuple[Any, ...]
"""What is a job's own but its name, in the order of `OWN`; of a simulation its duration and exit code."""
_TIME_LIMIT = OWN[1:].index("time_limit_s")
_HASH_BYTES = 32
_MARSHAL = 2
"""Of this version equal values have equal bytes."""


class Form:
    """One for all jobs that differ in `OWN` alone."""

    __slots__ = ("__weakref__", "rest", "spec")

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        """The first of its jobs."""
        self.rest = marshal.dumps(_rest(spec), _MARSHAL)
        """What is that job's own, but its name: most others have the same."""


_KNOWN = 512
_known: dict[tuple[Any, ...], Form] = {}
"""By the identity of a spec's parts, which their form keeps, so that no others can take their place."""
_forms: WeakValueDictionary[bytes, Form] = WeakValueDictionary()
"""By what is shared, as JSON. A form is kept for as long as a job has it."""


def form_of(spec: JobSpec) -> Form:
    """The form of its job."""
    fields = spec.__dict__
    parts = [fields[name] for name in _SHARED]
    mark = (fields["simulation"] is None, *(id(part) if isinstance(part, BaseModel) else part for part in parts))
    form = _known.get(mark)
    if form is None:
        shared = spec.model_dump_json(exclude=set(OWN)).encode()
        shared += b"1" if fields["simulation"] is None else b"0"
        form = _forms.get(shared)
        if form is None:
            _forms[shared] = form = Form(spec)
        if all(a is b for a, b in zip(parts, (form.spec.__dict__[name] for name in _SHARED), strict=True)):
            if len(_known) >= _KNOWN:
                _known.clear()
            _known[mark] = form
    return form


def kept(form: Form, spec: JobSpec, spec_hash: str) -> bytes:
    """What is the job's own: the hash of its body, its name, and the rest where it is not the form's."""
    rest = _rest(spec)
    return own_again(spec_hash, spec.name, None if marshal.dumps(rest, _MARSHAL) == form.rest else rest)


def spec_of(form: Form, own: bytes) -> JobSpec:
    """The inverse of `kept`: the job's spec."""
    _, name, *rest = marshal.loads(own)
    update: dict[str, Any] = {"name": name}
    if rest:
        update |= zip(OWN[1:], rest[0], strict=True)
        if (simulation := update["simulation"]) is not None:
            update["simulation"] = Simulation.model_construct(duration_s=simulation[0], exit_code=simulation[1])
    return form.spec.model_copy(update=update)


def own_of(own: bytes) -> tuple[str, str, Rest | None]:
    """The hash of the job's body, its name, and the rest of what is its own; None: that of its form."""
    hash_, name, *rest = marshal.loads(own)
    return unpacked_hash(hash_), name, rest[0] if rest else None


def own_again(spec_hash: str, name: str, rest: Rest | None) -> bytes:
    """The inverse of `own_of`."""
    own = (packed_hash(spec_hash), name)
    return marshal.dumps(own if rest is None else (*own, rest), _MARSHAL)


def rest_of(form: Form) -> Rest:
    """The rest of the form's first job."""
    rest: Rest = marshal.loads(form.rest)
    return rest


def time_limit_of(rest: Rest) -> float:
    """Seconds; 0: none."""
    limit_s: float = rest[_TIME_LIMIT]
    return limit_s


def written(rest: Rest) -> list[Any]:
    """For JSON whose writer may sort: the order of an environment is the job's own."""
    command, env, *others = rest
    return [command, list(env.items()), *others]


def read(written: list[Any], form: Form) -> Rest | None:
    """The inverse of `written`; None: it is the form's."""
    command, env, *others, simulation = written
    rest = (tuple(command), dict(env), *others, None if simulation is None else tuple(simulation))
    return None if marshal.dumps(rest, _MARSHAL) == form.rest else rest


def hash_of(own: bytes) -> str:
    """The hash of the job's body."""
    return unpacked_hash(marshal.loads(own)[0])


def name_of(own: bytes) -> str:
    """The job's name."""
    name: str = marshal.loads(own)[1]
    return name


def _rest(spec: JobSpec) -> Rest:
    simulation = spec.simulation
    return (
        spec.command, spec.env, spec.workdir, spec.stop_grace_s, spec.time_limit_s,
        (simulation.duration_s, simulation.exit_code) if simulation is not None else None,
    )  # fmt: skip


def packed_hash(spec_hash: str) -> bytes | str:
    """Half as long where it is 64 hexadecimal digits, as all but those of tests are."""
    if len(spec_hash) == 2 * _HASH_BYTES:
        try:
            packed = bytes.fromhex(spec_hash)
        except ValueError:
            return spec_hash
        return packed if packed.hex() == spec_hash else spec_hash
    return spec_hash


def unpacked_hash(packed: bytes | str) -> str:
    return packed.hex() if isinstance(packed, bytes) else packed
