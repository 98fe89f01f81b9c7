"""Make docs/protocol.md from the comments of proto/, or with --check see that the committed page is fresh."""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "protocol.md"
PACKAGE = "osmosis.rollout.v1"
ORDER = (
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
)
HEAD = """# The protocol

<!-- made by scripts/protocol_docs.py from proto/; change the comments there, then run `make generate` -->

This page has every service, message and field of `osmosis.rollout.v1`, as the proto files describe them.
[write-a-trainer.md](write-a-trainer.md) leads from stubs to a working trainer, and says
[where each language has the error details](write-a-trainer.md#stubs).

In the tables, `optional` marks a field whose presence counts: unset differs from the default value. Every other number,
string and enum is 0, empty or UNSPECIFIED when it is not set. A message field may always be unset.
"""
MESSAGE, ENUM, SERVICE = 4, 5, 6
FIELD, METHOD, VALUE, ONEOF = 2, 2, 2, 8
"""Field numbers in the descriptors: they make the paths of the source's comments."""
_CODE = re.compile(r"`[^`]*`")
_NAME = re.compile(r"\b([A-Z][A-Za-z]+)(\.[a-z_]+)?\b")


class Comments:
    """The comments of one proto file, by the path of the declaration that they describe."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._by_path = {tuple(place.path): place for place in file.source_code_info.location}

    def of(self, *path: int) -> str:
        """Returns the comment above a declaration."""
        place = self._by_path.get(path)
        return place.leading_comments if place else ""

    def of_file(self) -> str:
        """Returns the comment at the top of the file."""
        syntax = self._by_path.get((12,))
        return "\n\n".join([*syntax.leading_detached_comments, syntax.leading_comments]) if syntax else ""


class Links:
    """Links to the messages, enums and services of the page."""

    def __init__(self, files: Sequence[FileDescriptorProto]) -> None:
        self._names = {
            declared.name for file in files for declared in (*file.message_type, *file.enum_type, *file.service)
        }

    def type(self, name: str) -> str:
        """Returns a type as code, with a link if the page describes it."""
        short = name.rpartition(".")[2]
        if name.startswith(f".{PACKAGE}."):
            return f"[`{short}`](#{short.lower()})"
        return f"`{name.lstrip('.')}`"

    def text(self, comment: str) -> str:
        """Returns a comment as Markdown: a line for each paragraph, indented lists as code, names as links."""
        return "\n".join(
            f"```text\n{block}\n```\n" if code else f"{self._linked(block)}\n" for code, block in _blocks(comment)
        ).strip("\n")

    def line(self, comment: str) -> str:
        """Returns a comment as one line of Markdown, for a cell of a table."""
        return self._linked(" ".join(comment.split())).replace("|", "\\|")

    def _linked(self, text: str) -> str:
        parts, last = [], 0
        for code in _CODE.finditer(text):  # no links within code
            parts += [_NAME.sub(self._link, text[last : code.start()]), code[0]]
            last = code.end()
        return "".join([*parts, _NAME.sub(self._link, text[last:])])

    def _link(self, match: re.Match[str]) -> str:
        # A name of one word, such as Message or Status, is a link only if a field follows it.
        described = match[1] in self._names and (match[2] or sum(letter.isupper() for letter in match[1]) > 1)
        return f"[{match[0]}](#{match[1].lower()})" if described else match[0]


def _blocks(comment: str) -> Iterator[tuple[bool, str]]:
    """Yields the paragraphs of a comment, each as one line, and its indented lists, marked with True."""
    lines = [line.removeprefix(" ").rstrip() for line in comment.strip("\n").splitlines()]
    for block in re.split(r"\n{2,}", "\n".join(lines)):
        code = block.startswith("  ")
        yield (
            code,
            "\n".join(line.removeprefix("  ") for line in block.splitlines()) if code else " ".join(block.split()),
        )


def _type(field: FieldDescriptorProto, entries: dict[str, Any], links: Links) -> str:
    name = field.type_name.rpartition(".")[2]
    if name in entries:
        key, value = entries[name].field
        return f"map of {_type(key, {}, links)} to {_type(value, {}, links)}"
    scalar = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    plain = links.type(field.type_name) if name else f"`{scalar}`"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {plain}"
    return f"optional {plain}" if field.proto3_optional else plain


def _message(message: Any, path: tuple[int, ...], comments: Comments, links: Links) -> Iterator[str]:
    yield f"### {message.name}\n\n{links.text(comments.of(*path))}\n"
    entries = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    if message.field:
        yield "| | field | type | |\n|--:|---|---|---|"
    for index, field in enumerate(message.field):
        text = links.line(comments.of(*path, FIELD, index))
        if field.HasField("oneof_index") and not field.proto3_optional:
            text = f"*One of `{message.oneof_decl[field.oneof_index].name}`.* {text}"
        yield f"| {field.number} | `{field.name}` | {_type(field, entries, links)} | {text} |"
    if message.field:
        yield ""
    for index, oneof in enumerate(message.oneof_decl):
        if not oneof.name.startswith("_"):
            yield f"At most one field of `{oneof.name}` is set: {links.line(comments.of(*path, ONEOF, index))}\n"
    for reserved in message.reserved_range:
        yield f"Reserved: {_range(reserved.start, reserved.end - 1)}.\n"


def _range(first: int, last: int) -> str:
    return f"number {first}" if first == last else f"numbers {first} to {last}"


def _enum(enum: Any, path: tuple[int, ...], comments: Comments, links: Links) -> Iterator[str]:
    yield f"### {enum.name}\n\n{links.text(comments.of(*path))}\n\n| | value | |\n|--:|---|---|"
    for index, value in enumerate(enum.value):
        yield f"| {value.number} | `{value.name}` | {links.line(comments.of(*path, VALUE, index))} |"
    yield ""


def _service(service: Any, path: tuple[int, ...], comments: Comments, links: Links) -> Iterator[str]:
    yield f"### {service.name}\n\n{links.text(comments.of(*path))}\n"
    for index, method in enumerate(service.method):
        given, returned = links.type(method.input_type), links.type(method.output_type)
        streams = ("stream of " if method.client_streaming else "", "stream of " if method.server_streaming else "")
        yield f"#### {service.name}.{method.name}\n\n{streams[0]}{given} → {streams[1]}{returned}\n"
        yield links.text(comments.of(*path, METHOD, index)) + "\n"


_KINDS = (("service", SERVICE, _service), ("message_type", MESSAGE, _message), ("enum_type", ENUM, _enum))


def _contents(files: dict[str, FileDescriptorProto]) -> Iterator[str]:
    """Yields a line for each file: its first sentence and its declarations."""
    yield "## Contents\n"
    for name, file in files.items():
        (_, first), *_ = _blocks(Comments(file).of_file())
        declared = [each.name for kind, _, _ in _KINDS for each in getattr(file, kind)]
        links = ", ".join(f"[{each}](#{each.lower()})" for each in declared)
        yield f"- [{name}.proto](#{name}proto): {first.partition('. ')[0].rstrip('.')}.\n  {links}"
    yield ""


def page(files: Sequence[FileDescriptorProto]) -> str:
    """Returns the page as Markdown. Raises SystemExit if ORDER lacks a file or names one that does not exist."""
    known = {Path(file.name).stem: file for file in files if file.package == PACKAGE}
    if known.keys() != set(ORDER):
        raise SystemExit(f"scripts/protocol_docs.py: mend ORDER: {', '.join(sorted(known.keys() ^ set(ORDER)))}")
    ordered = {name: known[name] for name in ORDER}
    links = Links(list(ordered.values()))
    parts = [HEAD, *_contents(ordered)]
    for name, file in ordered.items():
        comments = Comments(file)
        parts.append(f"## {name}.proto\n\n{links.text(comments.of_file())}\n")
        for kind, number, write in _KINDS:
            for index, each in enumerate(getattr(file, kind)):
                parts += write(each, (number, index), comments, links)
    return "\n".join(parts).rstrip() + "\n"


def descriptors() -> FileDescriptorSet:
    """Returns the proto files with their comments, as buf reads them."""
    buf = Path(sys.executable).with_name("buf")
    made = subprocess.run([buf, "build", "-o", "-"], cwd=ROOT, check=True, capture_output=True)
    return FileDescriptorSet.FromString(made.stdout)


def main(check: bool) -> int:
    """Write the page. With `check`: returns 1 if the committed page is stale."""
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
