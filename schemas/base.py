"""The two kinds of model: what outsiders write is strict, what services write may grow.

Units are part of every field's name: `_us` microseconds since the Unix epoch (or a duration where the doc says so),
`_s` seconds, `_mib` mebibytes, `_milli` thousandths of one device, `_micros` millionths of the currency unit.

No number is infinite, and none is no number: JSON has neither, and what is written would be `null` to who reads it.
"""

from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import SchemaValidator

from schemas.ids import JOB_ID_PATTERN

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""A team, pool, queue or class: lower-case letters, digits and hyphens, at most 63 characters (one subject token)."""

NodeName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$")]
"""A machine's name: one subject token. Dots of a host name are written as hyphens."""

User = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{0,63}$")]
"""Who asked, within a team: one subject token, as the subject said it. Empty: nobody's, or not known."""

JobId = Annotated[str, StringConstraints(pattern=f"^{JOB_ID_PATTERN}$")]
"""Derived from team and client key (`schemas.ids.job_id`): a submit that is sent twice is one job."""

DeviceId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9:._/-]{0,127}$")]
"""A device's stable identity (an NVML UUID, `<node>-gpu3` when simulated); never an index."""


def in_64_bits(number: int) -> int:
    """The number. Raises ValueError when it is larger: JSON has no bound, and text may be a number of thousands of digits."""
    if not -(2**63) <= number < 2**63:
        raise ValueError("is beyond 64 bits: send a smaller number")
    return number


IN_64_BITS = AfterValidator(in_64_bits)
Micros = Annotated[int, Field(ge=0)]
"""Microseconds since the Unix epoch: by the broker's clock, or in ledger time, which is that clock's until it is set."""


BEYOND_DOUBLE = "x-beyond-double"
"""What the schema says of a number that a reader whose numbers are doubles (JavaScript's are) does not read exactly."""
LargeSum = Annotated[int, Field(ge=0, json_schema_extra={BEYOND_DOUBLE: True})]
"""Something times microseconds, or finer, added up: beyond 2^53 from 2,500 device-hours on, and without a bound. All other
integers that services work out are below 2^53 until the year 2255."""


class Strict(BaseModel):
    """Written by people and pipelines: an unknown field is an error, because it is usually a misspelt one."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", str_max_length=65_536, allow_inf_nan=False)


class Fact(BaseModel):
    """Written by Baton's services: readers ignore fields they do not know, so a v1 message may gain fields."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="ignore", allow_inf_nan=False)


M = TypeVar("M", bound=BaseModel)


def sent(model: BaseModel) -> bytes:
    """A request or question as JSON, without the fields that say nothing: null, as they are where they are missing. Who reads
    it may be of before there were such, and takes no field that it does not know."""
    silent = {name for name in _null_by_default(type(model)) if getattr(model, name) is None}
    return model.model_dump_json(exclude=silent).encode()


@cache
def _null_by_default(kind: type[BaseModel]) -> tuple[str, ...]:
    return tuple(name for name, field in kind.model_fields.items() if field.default is None)


def complete() -> None:
    """Builds all of our models that are imported. Else each is built when it is first used (`defer_build`): a command needs
    few of them, and all take a fifth of a second."""
    left: list[type[BaseModel]] = [Strict, Fact]
    for kind in left:
        kind.model_rebuild()
        left += kind.__subclasses__()


def validator(kind: type[BaseModel]) -> SchemaValidator:
    """What reads a model in one step, without a frame of Python's."""
    kind.model_rebuild()
    return kind.__pydantic_validator__  # type: ignore[return-value]


def of_known(kind: type[M], fields: dict[str, Any]) -> M:
    """A model of values that are known to be right, as `model_construct`, at a fifth of its cost. `fields` names every field
    there is, defaults too, and belongs to the model from then on."""
    model = kind.__new__(kind)
    for name, value in (("__dict__", fields), ("__pydantic_fields_set__", _names(kind)), *_NOTHING_ELSE):
        object.__setattr__(model, name, value)
    return model


_NOTHING_ELSE: tuple[tuple[str, None], ...] = (("__pydantic_extra__", None), ("__pydantic_private__", None))


@cache
def _names(kind: type[BaseModel]) -> set[str]:
    return set(kind.model_fields)
