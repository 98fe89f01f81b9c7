"""Make docs/protocol.md from the comments of proto/, or with --check see that the committed page is fresh."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "protocol.md"
ORDER = [
    "services",
    "rollout",
    "chat",
    "outcome",
    "tokens",
    "message",
    "attach",
    "control",
    "event",
    "annotation",
    "error",
]
HEAD = """# The protocol

<!-- made by scripts/protocol_docs.py from proto/; change the comments there, then run `make generate` -->

This page has every service, message and field of `osmosis.rollout.v1`, as the proto files describe them.
[write-a-trainer.md](write-a-trainer.md) leads from stubs to a working trainer.
"""
MESSAGE, FIELD, ENUM, SERVICE, ONEOF = 4, 2, 5, 6, 8
"""Field numbers in the descriptors: they make the paths of the source's comments."""


class Comments:
    """The comments of one proto file, by the path of what they describe."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._by_path = {tuple(place.path): place for place in file.source_code_info.location}

    def of(self, *path: int) -> str:
        """Returns the comment above a declaration, as paragraphs."""
        place = self._by_path.get(path)
        return _paragraphs(place.leading_comments) if place else ""

    def of_file(self) -> str:
        """Returns the comment at the top of the file."""
        syntax = self._by_path.get((12,))
        return _paragraphs("\n\n".join([*syntax.leading_detached_comments, syntax.leading_comments])) if syntax else ""


def _paragraphs(comment: str) -> str:
    """The text of a comment; an indented list becomes a block of code."""
    lines = [line.removeprefix(" ") for line in comment.strip("\n").splitlines()]
    return "\n".join(f"  {line}" if line.startswith("  ") else line for line in lines).strip()


def _flowed(text: str) -> str:
    """The text for a table cell or a list: one line."""
    return " ".join(text.split()).replace("|", "\\|")


def _type(field: FieldDescriptorProto, entries: dict[str, Any]) -> str:
    name = field.type_name.rpartition(".")[2]
    if name in entries:
        key, value = entries[name].field
        return f"map of {_type(key, {})} to {_type(value, {})}"
    plain = name or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {plain}"
    return f"optional {plain}" if field.proto3_optional else plain


def _message(message: Any, path: tuple[int, ...], comments: Comments) -> Iterator[str]:
    yield f"### {message.name}\n\n{comments.of(*path)}\n"
    if not message.field:
        return
    entries = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    yield "| field | type | |\n|---|---|---|"
    for index, field in enumerate(message.field):
        text = _flowed(comments.of(*path, FIELD, index))
        if field.HasField("oneof_index") and not field.proto3_optional:
            text = f"(one of `{message.oneof_decl[field.oneof_index].name}`) {text}"
        yield f"| {field.number} `{field.name}` | {_type(field, entries)} | {text} |"
    yield ""


def _enum(enum: Any, path: tuple[int, ...], comments: Comments) -> Iterator[str]:
    yield f"### {enum.name}\n\n{comments.of(*path)}\n\n| value | |\n|---|---|"
    for index, value in enumerate(enum.value):
        yield f"| {value.number} `{value.name}` | {_flowed(comments.of(*path, FIELD, index))} |"
    yield ""


def _service(service: Any, path: tuple[int, ...], comments: Comments) -> Iterator[str]:
    yield f"### {service.name}\n\n{comments.of(*path)}\n"
    for index, method in enumerate(service.method):
        given, returned = (name.rpartition(".")[2] for name in (method.input_type, method.output_type))
        streams = ("stream " if method.client_streaming else "", "stream " if method.server_streaming else "")
        yield f"#### {method.name}\n\n`{streams[0]}{given}` → `{streams[1]}{returned}`\n"
        yield comments.of(*path, FIELD, index) + "\n"


def page(files: Sequence[FileDescriptorProto]) -> str:
    """Returns the page as Markdown."""
    parts = [HEAD]
    known = {Path(file.name).stem: file for file in files if file.package == "osmosis.rollout.v1"}
    for name in ORDER:
        file = known.pop(name)
        comments = Comments(file)
        parts.append(f"## {name}.proto\n\n{comments.of_file()}\n")
        kinds = (
            (file.service, SERVICE, _service),
            (file.message_type, MESSAGE, _message),
            (file.enum_type, ENUM, _enum),
        )
        for declared, number, write in kinds:
            for index, each in enumerate(declared):
                parts += write(each, (number, index), comments)
    if known:
        raise SystemExit(f"scripts/protocol_docs.py: add {', '.join(sorted(known))} to ORDER")
    return "\n".join(parts).rstrip() + "\n"


def descriptors() -> FileDescriptorSet:
    """Returns the proto files with their comments, as buf reads them."""
    buf = Path(sys.executable).with_name("buf")
    made = subprocess.run([buf, "build", "-o", "-"], cwd=ROOT, check=True, capture_output=True)
    return FileDescriptorSet.FromString(made.stdout)


def main(check: bool) -> int:
    """Write the page, or return 1 if it is stale."""
    text = page(descriptors().file)
    if not check:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print("docs/protocol.md is not what proto/ says: run make generate", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
