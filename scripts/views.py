"""Write the views of `query` into docs/query.md, or with --check see that they are fresh."""

import sys
from pathlib import Path

from osmosis_grpc.records.query import VIEWS, VIEWS_VERSION

PAGE = Path(__file__).resolve().parent.parent / "docs" / "query.md"
BEGIN, END = "<!-- begin views: python scripts/views.py -->\n", "<!-- end views -->\n"


def page(text: str) -> str:
    """Return the page with the present views between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{views()}{END}{after}"


def views() -> str:
    """Return the tables of all views."""
    parts = [
        f"This is version {VIEWS_VERSION} of the views. It grows when a query of an older version can break. New "
        "columns and views do not change it.\n"
    ]
    for view in VIEWS.values():
        parts += [f"\n### {view.name}\n\n{view.meaning}\n\n| column | type | meaning |\n|---|---|---|\n"]
        parts += [f"| `{each.name}` | {each.type} | {each.meaning} |\n" for each in view.columns]
    return "".join(parts)


def main(check: bool) -> int:
    """Write the page, or compare it."""
    text = PAGE.read_text()
    if not check:
        PAGE.write_text(page(text))
    elif text != page(text):
        print(f"{PAGE.name} has other views than the code: run python scripts/views.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
