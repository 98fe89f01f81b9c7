"""RolloutRequest as an agent sees it: with pydantic's methods, and with fields that the agent can set."""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import requests

if TYPE_CHECKING:
    from osmosis_grpc.agent.request_model import RequestModel

NAMES = requests.RolloutRequest.__slots__


class _Fields:
    def __get__(self, request: object, cls: type) -> Any:
        return _model().model_fields


class RolloutRequest(requests.RolloutRequest):
    """A request for a rollout. It has the methods of a pydantic model, and its fields can be set.

    The constructor checks and converts its fields as pydantic does. Raises pydantic's ValidationError, a ValueError,
    for a wrong field, for example a blank `rollout_id`. The server makes the request of a rollout without these checks,
    because it checked the request before.
    """

    __slots__ = ()
    model_fields = _Fields()
    __setattr__ = object.__setattr__
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, **fields: Any) -> None:
        self._set(_model()(**fields))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, requests.RolloutRequest):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in NAMES)

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Return the fields as a dict. `options` are those of pydantic's model_dump."""
        return self._as_model().model_dump(**options)

    def model_dump_json(self, **options: Any) -> str:
        """Return the fields as a JSON text. `options` are those of pydantic's model_dump_json."""
        return self._as_model().model_dump_json(**options)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other values for some fields. They are not checked, as in pydantic.

        Args:
            update: The values by field.
            deep: Whether the values of the other fields are copied, too.

        Raises:
            AttributeError: There is no such field.
        """
        unknown = sorted(set(update or ()) - set(NAMES))
        if unknown:
            raise AttributeError(f"a RolloutRequest has no field {unknown[0]!r}")
        source = copy.deepcopy(self) if deep else self
        return requests.copy_of(source, type(self), **dict(update or {}))

    @classmethod
    def model_validate(cls, value: Any, **options: Any) -> Self:
        """Return the request of a dict or of another request. Raises pydantic's ValidationError.

        Args:
            value: The dict or the request.
            **options: Those of pydantic's model_validate.
        """
        return cls._of(_model().model_validate(value, from_attributes=True, **options))

    @classmethod
    def model_validate_json(cls, text: str | bytes, **options: Any) -> Self:
        """Return the request of a JSON text. Raises pydantic's ValidationError.

        Args:
            text: The JSON text.
            **options: Those of pydantic's model_validate_json.
        """
        return cls._of(_model().model_validate_json(text, **options))

    @classmethod
    def model_construct(cls, **fields: Any) -> Self:
        """Return a request without any check."""
        return cls._of(_model().model_construct(**fields))

    @classmethod
    def model_json_schema(cls, **options: Any) -> dict[str, Any]:
        """Return the JSON schema."""
        return _model().model_json_schema(**options)

    @classmethod
    def unchecked(cls, **fields: Any) -> Self:
        """Return a request without any check, and without pydantic."""
        return cls.of(requests.RolloutRequest(**fields))

    @classmethod
    def of(cls, request: requests.RolloutRequest) -> Self:
        """Return the trainer's request as an agent gets it, unchecked."""
        return request if isinstance(request, cls) else requests.copy_of(request, cls)

    @property
    def model_fields_set(self) -> set[str]:
        """The names of the fields that do not have their default."""
        blank = _model().model_construct(rollout_id="")
        return {name for name in NAMES if name == "rollout_id" or getattr(self, name) != getattr(blank, name)}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return the schema for fields of pydantic models and for parameters of FastAPI's functions."""
        from pydantic_core import core_schema

        checked = core_schema.no_info_after_validator_function(cls._of, handler(_model()))
        known = core_schema.is_instance_schema(cls)
        return core_schema.json_or_python_schema(
            json_schema=checked,
            python_schema=core_schema.union_schema([known, checked], mode="left_to_right"),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda request: request.model_dump()),
        )

    @classmethod
    def _of(cls, model: "RequestModel") -> Self:
        made = object.__new__(cls)
        made._set(model)
        return made

    def _set(self, model: "RequestModel") -> None:
        for name in NAMES:
            setattr(self, name, getattr(model, name))

    def _as_model(self) -> "RequestModel":
        fields = {name: getattr(self, name) for name in NAMES}
        plain = {"messages": list, "completion_params": dict, "metadata": dict}
        return _model().model_construct(**fields | {name: kind(fields[name]) for name, kind in plain.items()})


def _model() -> "type[RequestModel]":
    from osmosis_grpc.agent.request_model import RequestModel

    return RequestModel


def refuse_grader_timeout(name: str, request: requests.RolloutRequest) -> None:
    """Raise InvalidArgument if a request for an agent without a grader has a grader's time limit."""
    if request.grader_timeout is not None:
        raise InvalidArgument("spec.grader_timeout", f"the agent {name} has no grader")
