"""Write docs/settings.md from the declared options, or with --check see that it is fresh."""

import sys
from pathlib import Path

from osmosis_grpc.console.line import FIELDS
from osmosis_grpc.console.option import Field

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

HEAD = """# Settings

Every option of `osmosis-grpc serve` and of `python -m osmosis_gateway`, with its environment variable and its default.
`scripts/settings.py` writes this page from `osmosis_grpc/console`.

- A value wins in this order: command line, environment variable, file `.env` in the current folder, default.
- In a variable, a list is separated by blanks, tokens and commands are separated by line ends, and a switch is `true`
  or `false`.
- A switch has a second flag that turns it off again: `--no-reload` for `--reload`, `--http` for `--no-http`.
- A wrong value stops the start. The message names the option, or the variable where the value came from there.
- A variable with the prefix `OSMOSIS_ROLLOUT_` that is not on this page is ignored. A warning names it and the nearest
  known name.
- A variable without an option has no flag in its row.
"""

NAMES = {"serve": "`serve`", "gateway": "gateway"}


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for group in dict.fromkeys(field.option.group for field in FIELDS.values()):
        parts += [f"\n## {group}\n\n", "| option | variable | default | what it does | of |\n|---|---|---|---|---|\n"]
        parts += [row(field) for field in FIELDS.values() if field.option.group == group]
    return "".join(parts)


def row(field: Field) -> str:
    """Return the row of an option."""
    value = f" {field.option.metavar}" if field.option.metavar else ""
    flags = ", ".join(f"`{flag}`" for flag in field.option.flags[:-1])
    last = f"`{field.option.flags[-1]}{value}`" if field.option.flags else ""
    facts = [text for text in (field.option.help, f"{field.bounds}." if field.bounds else "") if text]
    facts += ["May be repeated."] if field.several else []
    cells = [
        ", ".join(filter(None, (flags, last))),
        f"`{field.variable}`",
        f"`{field.default}`" if field.default else "",
        " ".join(facts),
        ", ".join(NAMES[command] for command in field.option.commands),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def main(check: bool) -> int:
    """Write the page, or compare it."""
    if not check:
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        print(f"{PAGE.name} is not what the options say: run python scripts/settings.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
