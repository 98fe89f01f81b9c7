"""Formats --help: one entry for each option, with its default and its variable, at most 80 columns wide."""

import shutil
import textwrap
from collections.abc import Sequence

from osmosis_grpc.settings.option import Field

WIDEST = 80

_ORDER = (
    "An option wins over its environment variable, a variable over the file .env of this folder, and that over the "
    "default. In a variable a list is separated by blanks, tokens by line ends, and a switch is true or false."
)


def help_text(usage: str, description: str, fields: Sequence[Field]) -> str:
    """Return the whole help of a command."""
    width = min(WIDEST, max(40, shutil.get_terminal_size((WIDEST, 24)).columns))
    lines = [
        *_wrapped(f"Usage: {usage}", width, 0),
        "",
        *(line for part in description.split("\n\n") for line in (*_wrapped(part, width, 2), "")),
        *_wrapped(_ORDER, width, 2),
    ]
    groups = dict.fromkeys(field.option.group for field in fields)
    for group in groups:
        lines += ["", f"{group}:"]
        for field in fields:
            if field.option.group == group:
                lines += _entry(field, width)
    return "\n".join([*lines, "", "Other:", "  --help", "      Show this text and exit.", ""])


def _entry(field: Field, width: int) -> list[str]:
    usage = field.option.usage + (f" / {field.off}" if field.switch else "")
    facts = [f"[default: {field.default}]"] if field.default else []
    bounds = field.bounds
    facts += [f"[{bounds}]"] if bounds else []
    facts += ["[repeatable]"] if field.several else []
    text = " ".join([field.option.help, *(fact.replace(" ", "\0") for fact in facts)])
    about = [line.replace("\0", " ") for line in _wrapped(text, width, 6)]
    return [f"  {usage}", *about, f"      {field.variable}"] if usage else [f"  {field.variable}", *about]


def _wrapped(text: str, width: int, indent: int) -> list[str]:
    """Wrap a text between words only."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
