"""The migrate command: changes the import lines of programs for the Osmosis SDK and the Agentic Rollout Library."""

import os
from pathlib import Path

from osmosis_grpc.compat.migration import migration
from osmosis_grpc.serve.json_output import records, usage_error


def run_migrate(target: str, *, check: bool, json: bool) -> int:
    """Change a folder, or with `check` only print what would change. Return the exit code."""
    folder = Path(target)
    if not folder.exists():
        usage_error("migrate", f"there is no file or folder {target!r}")
    changes, notes = migration(folder)
    with records(json) as out:
        for change in changes:
            if not check:
                _write(change.path, change.text)
            lines = ", ".join(map(str, change.lines))
            out.write("change", path=str(change.path), lines=change.lines, written=not check)
            out.say(f"{change.path}: imports {'to change' if check else 'changed'} in line {lines}")
        for note in notes:
            out.write("left", path=str(note.path), line=note.line, text=note.text)
            out.say(f"{note.path}:{note.line}: {note.text}")
        out.write("end", changed=len(changes), left=len(notes))
        out.say(f"{len(changes)} files {'to change' if check else 'changed'}, {len(notes)} places left to do by hand")
    return int(bool(notes) or (check and bool(changes)))


def _write(path: Path, text: str) -> None:
    """Replace a file atomically, and keep its mode."""
    made = path.with_name(f".{path.name}.migrated")
    made.write_bytes(text.encode())
    made.chmod(path.stat().st_mode & 0o7777)
    os.replace(made, path.resolve())
