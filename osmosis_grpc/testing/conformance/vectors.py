"""Language-neutral vectors: values that are equal and values that differ. The cases of both sides use them."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from osmosis_grpc.testing.conformance.cases import folder, parse
from osmosis_grpc.testing.conformance.protobuf_data import CaseError


@cache
def vector(name: str) -> Mapping[str, Any]:
    """Return a file of `conformance/vectors`. Raises CaseError."""
    path = folder() / "vectors" / f"{name}.yaml"
    if not path.exists():
        raise CaseError(f"there is no vector {name}")
    found: Mapping[str, Any] = parse(path.read_text(encoding="utf-8"), path.name)
    return found


def pairs(body: Mapping[str, Any]) -> Iterator[tuple[Any, Any, bool]]:
    """Yield (one, other, whether they are equal) of a case: its own lists, and those of the vector that it names."""
    sources = [body, *([vector(body["vector"])] if "vector" in body else [])]
    for source in sources:
        for key, equal in (("equal", True), ("different", False)):
            for pair in source.get(key, ()):
                if not isinstance(pair, list) or len(pair) != 2:
                    raise CaseError(f"{key}: {pair!r} is no pair of values")
                yield pair[0], pair[1], equal


def check_pairs(body: Mapping[str, Any]) -> None:
    """Check that a case has a field and pairs. Raises CaseError."""
    if "field" not in body:
        raise CaseError("field is missing")
    if not list(pairs(body)):
        raise CaseError("a case of the kind equality has a `vector`, or a list `equal` or `different`")


def put(data: dict[str, Any], path: str, value: Any) -> None:
    """Put a value at a path such as `spec.messages[0]`. An object at the end of a path without index is merged."""
    *parents, last = path.replace("[", ".").replace("]", "").split(".")
    at: Any = data
    for name in parents:
        at = at[int(name)] if isinstance(at, list) else at.setdefault(name, {})
    if isinstance(at, list):
        at[int(last)] = value
    else:
        at[last] = {**at.get(last, {}), **value} if isinstance(value, Mapping) else value
