"""Job specs that were read before: equal ones are validated once and share one object, since most jobs of a team are alike."""

import marshal
from typing import Annotated, Any, cast

from pydantic import BaseModel, ValidatorFunctionWrapHandler, WrapValidator

from schemas.jobs import JobSpec

_KNOWN_SPECS = 256
_KNOWN_BYTES = 4096
_KNOWN_PARTS = 1024
_known: dict[bytes, JobSpec] = {}
_known_parts: dict[tuple[str, bytes], Any] = {}
"""(field, encoded value) -> the validated value."""
_known_sets: dict[frozenset[str], set[str]] = {}
_NO_ENV: dict[str, str] = {}


def _accepted(value: Any, _strict: ValidatorFunctionWrapHandler) -> JobSpec:
    """The recently seen spec that is equal, else a new one. Ignores unknown fields."""
    if not (encoded := _encoded(value)):
        return JobSpec.model_validate(value, extra="ignore")
    if (spec := _known.get(encoded)) is None:
        spec = _from_known_parts(value)
        if len(_known) >= _KNOWN_SPECS:
            _known.clear()
        _known[encoded] = spec
    return spec


def _from_known_parts(value: dict[str, Any]) -> JobSpec:
    """Mostly the name or the command differs. Parts seen before are not validated again and are shared, so a hundred thousand
    specs take a third of the memory."""
    marks = {
        field: (field, marshal.dumps(part, 2))
        for field, part in value.items()
        if part and isinstance(part, dict | list)
    }
    known = {field: _known_parts[mark] for field, mark in marks.items() if mark in _known_parts}
    models = {field: part for field, part in known.items() if isinstance(part, BaseModel)}
    spec = JobSpec.model_validate(value | models, extra="ignore")
    fields = spec.__dict__
    for field, mark in marks.items():
        if field in fields:
            if len(_known_parts) >= _KNOWN_PARTS:
                _known_parts.clear()
            fields[field] = _known_parts.setdefault(mark, fields[field])
    if not fields["env"]:
        fields["env"] = _NO_ENV
    given = frozenset(spec.model_fields_set)
    if len(_known_sets) >= _KNOWN_SPECS:
        _known_sets.clear()
    object.__setattr__(spec, "__pydantic_fields_set__", _known_sets.setdefault(given, spec.model_fields_set))
    return spec


AcceptedSpec = Annotated[JobSpec, WrapValidator(_accepted)]
"""A spec inside a fact. Admission has refused misspelt fields already, so a field unknown here was written by a newer
service, and is ignored like any other new field of a fact."""


_SUBMITTED_SPECS = 64  # a spec with its own defaults takes 19 KB
_submitted: dict[bytes, JobSpec] = {}


def _submitted_spec(value: Any, strict: ValidatorFunctionWrapHandler) -> JobSpec:
    """The recently seen spec that is equal, else a new one. An invalid spec is validated each time."""
    encoded = _encoded(value)
    if not encoded:
        return cast(JobSpec, strict(value))
    if (spec := _submitted.get(encoded)) is None:
        spec = strict(value)
        if len(_submitted) >= _SUBMITTED_SPECS:
            _submitted.clear()
        _submitted[encoded] = spec
    return spec


SubmittedSpec = Annotated[JobSpec, WrapValidator(_submitted_spec)]
"""A spec inside a request: a misspelt field is an error."""


def _encoded(value: Any) -> bytes:
    """The key of a spec; b"" when it is too large, or contains objects."""
    try:
        encoded = marshal.dumps(value, 2) if isinstance(value, dict) else b""
    except ValueError:  # a dictionary that contains models
        return b""
    return encoded if len(encoded) <= _KNOWN_BYTES else b""
