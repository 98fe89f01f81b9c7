"""The comments of the proto files, by the name of the declaration."""

import functools
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from tests.processes import ROOT

FILES = sorted((ROOT / "proto").rglob("*.proto"))
MESSAGE, ENUM, SERVICE, FIELD, ONEOF = 4, 5, 6, 2, 8
"""Field numbers of the descriptors, which make the paths of comments."""


@functools.cache
def descriptors() -> list[FileDescriptorProto]:
    """Returns the descriptors of this project's proto files, with their comments."""
    buf = Path(sys.executable).with_name("buf")
    made = subprocess.run([buf, "build", "-o", "-"], cwd=ROOT, check=True, capture_output=True)
    return [file for file in FileDescriptorSet.FromString(made.stdout).file if file.name.startswith("osmosis/")]


@functools.cache
def comments() -> dict[str, str]:
    """Returns each declaration's comment on one line.

    The names are `Message`, `Message.field`, `Service.Method` and so on. The comment of a whole file has the name of
    the file, for example `attach.proto`.
    """
    found: dict[str, str] = {}
    for file in descriptors():
        places = {tuple(place.path): place for place in file.source_code_info.location}
        syntax = places[(12,)]
        found[Path(file.name).name] = _flowed("\n".join([*syntax.leading_detached_comments, syntax.leading_comments]))
        found |= {name: _flowed(places[path].leading_comments) for name, path in _declarations(file) if path in places}
    return found


def _declarations(file: FileDescriptorProto) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the name and the path of each declaration."""
    for number, owners in ((MESSAGE, file.message_type), (ENUM, file.enum_type), (SERVICE, file.service)):
        for index, owner in enumerate(owners):
            yield owner.name, (number, index)
            for kind, members in _members(owner, number):
                for place, member in enumerate(members):
                    yield f"{owner.name}.{member.name}", (number, index, kind, place)


def _members(owner: Any, number: int) -> Sequence[tuple[int, Any]]:
    if number == MESSAGE:
        return [(FIELD, owner.field), (ONEOF, owner.oneof_decl)]
    return [(2, owner.value if number == ENUM else owner.method)]


def _flowed(comment: str) -> str:
    return " ".join(comment.split())
