"""Reads the cases and their vectors, which are YAML files in the folder `conformance`. The wheel contains them, too.

`${name}` in any text of a case is a variable. A text that is nothing but a variable becomes the variable's value.
`${repeat TEXT N}` repeats a text, for long values; N is a number or a variable.
`{$numbered: {count: N, value: V}}` is an object with the keys x0, x1 and so on.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple

import osmosis_grpc
from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.testing.conformance.protobuf_data import CaseError

PACKAGE = Path(osmosis_grpc.__file__).parent
FOLDERS = PACKAGE / "conformance", PACKAGE.parent / "conformance"
"""Where the cases may be: inside an installed package, or beside it in a checkout."""
MODES = ("callback", "attach", "accept", "call")
"""How the suite and the side under test are connected. In the mode `call`, a case makes calls and opens no link."""
LIMIT = 25.0
"""The time limit of a case in seconds, unless the case sets a `limit`."""
SHORT_SILENCE = "chat_silence of at most 60 s"
_NEED = re.compile(rf"(no )?feature \w+|(second_|admin_|no_)?token|plain|one_agent|{SHORT_SILENCE}")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_REPEAT = re.compile(r"\$\{repeat (\S+) (\w+)\}")


class Kind(NamedTuple):
    """A kind of case."""

    keys: frozenset[str]
    """The keys of its body."""
    lists: tuple[str, ...]
    """The keys that a body must have. The value of each is a list."""
    run: Callable[[Any], Awaitable[None]]
    """Runs a case of this kind. Raises Failed."""
    check: Callable[[Mapping[str, Any]], None] = lambda _body: None
    """Checks a body when it is read. Raises CaseError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case. The fields are the keys in YAML. `body` has the keys of its kind."""

    name: str
    attacks: str
    kind: str
    side: str
    """The side under test."""
    file: str
    over: tuple[str, ...] = ("attach",)
    """The modes in which the case runs."""
    shows: Mapping[str, list[str]] = field(default_factory=dict)
    """The sentences of the proto files that it checks, by the name of the declaration. A sentence may be shortened."""
    needs: tuple[str, ...] = ()
    """What the side under test or the command line must have, such as `feature NAME` or `second_token`."""
    limit: float = LIMIT
    wait: float | None = None
    alone: bool = False
    """Whether no other case runs at the same time."""
    body: Mapping[str, Any] = field(default_factory=dict)


def folder() -> Path:
    """Return the folder of the cases. Raises CaseError if the installation has none."""
    for each in FOLDERS:
        if each.is_dir():
            return each
    raise CaseError("this installation has no conformance cases; install the wheel again")


def load(side: str, kinds: Mapping[str, Kind], path: Path | None = None) -> list[Case]:
    """Return the cases for a side in the order of their files. Raises CaseError naming the file and the case."""
    found: dict[str, Case] = {}
    files = sorted((path or folder()).joinpath(side).glob("*.yaml"))
    if not files:
        raise CaseError(f"there is no file {(path or folder()) / side}/*.yaml")
    for file in files:
        for case in read(file.read_text(encoding="utf-8"), side, kinds, file.name):
            if case.name in found:
                raise CaseError(f"{file.name}: there are two cases {case.name}")
            found[case.name] = case
    return list(found.values())


def read(text: str, side: str, kinds: Mapping[str, Kind], file: str = "cases") -> Iterator[Case]:
    """Yield the cases of one file. Raises CaseError."""
    entries = parse(text, file)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise CaseError(f"{file}: is not a list of cases; each case begins with `- case: NAME`")
    for number, entry in enumerate(entries, 1):
        try:
            yield _case(entry, side, kinds, file)
        except CaseError as error:
            raise CaseError(f"{file}: {entry.get('case', f'case {number}')}: {error}") from None


def parse(text: str, file: str) -> Any:
    """Parse YAML text. Raises CaseError, and MissingExtraError."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise MissingExtraError("the conformance suite", "conformance") from None
    safe = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the loader in C is ten times as fast
    try:
        return safe(text).get_single_data()
    except yaml.YAMLError as error:
        raise CaseError(f"{file}: {error}") from None


_TYPES: Mapping[str, tuple[type | UnionType, str]] = {
    "case": (str, "a text"),
    "attacks": (str, "a text"),
    "kind": (str, "a text"),
    "over": (list, "a list"),
    "needs": (list, "a list"),
    "limit": (int | float, "a number"),
    "wait": (int | float, "a number"),
    "shows": (dict, "an object"),
}
"""The type of each key that all kinds have, and the name of the type for messages."""


def _case(entry: dict[str, Any], side: str, kinds: Mapping[str, Kind], file: str) -> Case:
    own = dict(entry)
    for key, (type_, called) in _TYPES.items():
        if key in own and not isinstance(own[key], type_):
            raise CaseError(f"{key}: is not {called}: {own[key]!r}")
        if key not in own and key in ("case", "attacks", "kind"):
            raise CaseError(f"{key} is missing")
    name, attacks, kind = own.pop("case"), own.pop("attacks"), own.pop("kind")
    if not _NAME.fullmatch(name):
        raise CaseError("the name of a case has lower-case letters, digits and hyphens")
    if kind not in kinds:
        raise CaseError(f"there is no kind {kind}; there are {', '.join(kinds)}")
    over = tuple(own.pop("over", ("call",) if kind in ("calls", "http2") else ("attach",)))
    if unknown := set(over) - set(MODES):
        raise CaseError(f"over: there is no mode {', '.join(sorted(unknown))}; there are {', '.join(MODES)}")
    common = {
        "needs": tuple(own.pop("needs", ())),
        "limit": float(own.pop("limit", LIMIT)),
        "wait": own.pop("wait", None),
        "alone": bool(own.pop("alone", False)),
        "shows": own.pop("shows", {}),
    }
    if wrong := own.keys() - kinds[kind].keys:
        raise CaseError(f"a case of the kind {kind} has no key {', '.join(sorted(wrong))}")
    if wrong_needs := [need for need in common["needs"] if not _NEED.fullmatch(need)]:
        raise CaseError(f"needs: {', '.join(wrong_needs)} is nothing that a case can need")
    for key in kinds[kind].lists:
        if not isinstance(own.get(key), list) or not own[key]:
            raise CaseError(f"{key}: is not a list with elements" if key in own else f"{key} is missing")
    kinds[kind].check(own)
    return Case(name=name, attacks=attacks, kind=kind, side=side, file=file, over=over, body=own, **common)


def filled(data: Any, values: Mapping[str, Any]) -> Any:
    """Replace the variables in `data` by their values. Raises CaseError for a variable without a value."""
    if isinstance(data, Mapping):
        if data.keys() == {"$numbered"}:
            many = data["$numbered"]
            return {f"x{number}": filled(many["value"], values) for number in range(many["count"])}
        return {filled(key, values): filled(value, values) for key, value in data.items()}
    if isinstance(data, list):
        return [filled(each, values) for each in data]
    if not isinstance(data, str) or "${" not in data:
        return data
    whole = _VARIABLE.fullmatch(data)
    if whole:
        return _value(whole[1], values)
    text = _REPEAT.sub(lambda match: match[1] * int(match[2] if match[2].isdigit() else _value(match[2], values)), data)
    return _VARIABLE.sub(lambda match: str(_value(match[1], values)), text)


def _value(name: str, values: Mapping[str, Any]) -> Any:
    if name not in values:
        raise CaseError(f"there is no variable {name}; there are {', '.join(sorted(values))}")
    return values[name]


@cache
def vector(name: str) -> Mapping[str, Any]:
    """Return a file of `conformance/vectors`. Raises CaseError."""
    path = folder() / "vectors" / f"{name}.yaml"
    if not path.exists():
        raise CaseError(f"there is no vector {name}")
    found: Mapping[str, Any] = parse(path.read_text(encoding="utf-8"), path.name)
    return found


def pairs(body: Mapping[str, Any]) -> Iterator[tuple[Any, Any, bool]]:
    """Yield (one, other, whether they are equal) from the lists of a case, and from the lists of the case's vector."""
    sources = [body, *([vector(body["vector"])] if "vector" in body else [])]
    for source in sources:
        for key, equal in (("equal", True), ("different", False)):
            for pair in source.get(key, ()):
                if not isinstance(pair, list) or len(pair) != 2:
                    raise CaseError(f"{key}: {pair!r} is not a pair of values")
                yield pair[0], pair[1], equal


def check_pairs(body: Mapping[str, Any]) -> None:
    """Check that a case has a field and pairs. Raises CaseError."""
    if "field" not in body:
        raise CaseError("field is missing")
    if not list(pairs(body)):
        raise CaseError("a case of the kind equality has a `vector`, or a list `equal` or `different`")


def put(data: dict[str, Any], path: str, value: Any) -> None:
    """Put a value at a path such as `spec.messages[0]`. Merge an object, unless the path ends with an index."""
    *parents, last = path.replace("[", ".").replace("]", "").split(".")
    at: Any = data
    for name in parents:
        at = at[int(name)] if isinstance(at, list) else at.setdefault(name, {})
    if isinstance(at, list):
        at[int(last)] = value
    else:
        at[last] = {**at.get(last, {}), **value} if isinstance(value, Mapping) else value
