"""Damages SQLite files on purpose, and changes rows without a trace in their checksums."""

from pathlib import Path

from osmosis_grpc.storage.sqlite.file_schema import row_sum


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def signed(connection, schema, name: str) -> None:
    """Make the checksums of a table match its changed rows."""
    table = schema.tables[name]
    for row in connection.execute(f"SELECT rowid, * FROM {name}").fetchall():
        rowid, values = row[0], dict(zip(table.columns, row[1:], strict=True))
        for column, covered in table.sums.items():
            if values[column] is not None:
                made = row_sum(f"{name}.{column}".encode(), [values[c] for c in covered])
                connection.execute(f"UPDATE {name} SET {column} = ? WHERE rowid = ?", (made, rowid))
