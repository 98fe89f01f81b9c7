"""Rows that the user chooses by their numbers, as 3,7,10-20."""


class RowChoice:
    """The rows of a text such as 3,7,10-20. Both ends of a range are chosen. Raises ValueError for another text."""

    def __init__(self, text: str) -> None:
        self._ranges = [_range(text, part.strip()) for part in text.split(",")]

    def __call__(self, number: int) -> bool:
        """Return whether the row with this number is chosen."""
        return any(number in chosen for chosen in self._ranges)

    @property
    def last(self) -> int:
        """The highest number."""
        return max(chosen[-1] for chosen in self._ranges)

    def after(self, count: int) -> int | None:
        """Return the lowest chosen number after the first `count` ones, or None if there are not more."""
        reached = -1
        for chosen in sorted(self._ranges, key=lambda each: each.start):
            new = range(max(chosen.start, reached + 1), chosen.stop)
            if count < len(new):
                return new[count]
            count -= len(new)
            reached = max(reached, chosen[-1])
        return None


def _range(text: str, part: str) -> range:
    first, dash, last = part.partition("-")
    numbers = [number.strip() for number in ((first, last) if dash else (first, first))]
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise ValueError(f"{text!r} has {part!r}, which is no row and no range; an example is 3,7,10-20")
    chosen = range(int(numbers[0]), int(numbers[1]) + 1)
    if not chosen:
        raise ValueError(f"{text!r} has the range {part}, which ends before it begins")
    return chosen
