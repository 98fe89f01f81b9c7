"""Reads the cases: YAML files of the folder `conformance`, which the wheel has, too."""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple

import osmosis_grpc
from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.testing.conformance.protobuf_data import CaseError

PACKAGE = Path(osmosis_grpc.__file__).parent
FOLDERS = PACKAGE / "conformance", PACKAGE.parent / "conformance"
"""Where the cases are: in the package after the installation of a wheel, and beside it in a checkout."""
MODES = ("callback", "attach", "accept", "call")
"""How the suite and the side under test are connected. `call` is a case that makes calls and opens no link."""
LIMIT = 25.0
"""Seconds that a case may take, unless it has a `limit`."""
SHORT_SILENCE = "chat_silence of at most 60 s"
_NEED = re.compile(rf"(no )?feature \w+|(second_|admin_|no_)?token|plain|one_agent|{SHORT_SILENCE}")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


class Kind(NamedTuple):
    """A kind of case."""

    keys: frozenset[str]
    """The keys of its body."""
    lists: tuple[str, ...]
    """The keys that a body has to have, with a list each."""
    run: Callable[[Any], Awaitable[None]]
    """Runs a case of the kind. Raises Failed."""
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
    """The sentences of the proto that it rests on, by the name of the declaration. A sentence may be shortened."""
    needs: tuple[str, ...] = ()
    """What the side under test or the command line has to have: `feature NAME`, `second_token`, `admin` and so on."""
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
        raise CaseError(f"{file}: is no list of cases; each case begins with `- case: NAME`")
    for number, entry in enumerate(entries, 1):
        try:
            yield _case(entry, side, kinds, file)
        except CaseError as error:
            raise CaseError(f"{file}: {entry.get('case', f'case {number}')}: {error}") from None


def parse(text: str, file: str) -> Any:
    """Return what YAML text says. Raises CaseError, and MissingExtraError."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise MissingExtraError("the conformance suite", "conformance") from None
    try:
        return yaml.safe_load(text)
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
"""The types of the keys that all kinds have, and their names."""


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
            raise CaseError(f"{key}: is no list with elements" if key in own else f"{key} is missing")
    kinds[kind].check(own)
    return Case(name=name, attacks=attacks, kind=kind, side=side, file=file, over=over, body=own, **common)
