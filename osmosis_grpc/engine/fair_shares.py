"""How owners share a limited resource: slots, places in the queue, bytes, attachments."""


class Shares:
    """How much of a limit each owner uses. One owner alone may use all of it.

    Nothing is taken back from an owner. So an owner with less than an even share may use more, up to that share, even
    when the limit is reached. Every other owner waits until less than the limit is used. In this way the uses move
    towards even shares. Meanwhile two owners use at most 1 + 1/2 of the limit together, three owners 1 + 1/2 + 1/3.
    `per_owner` is the most that any owner may use.
    """

    def __init__(self, limit: int, per_owner: int | None = None) -> None:
        self.limit = limit
        self.total = 0
        """The use of all owners together."""
        self._per_owner = per_owner
        self._used: dict[str, int] = {}

    def used(self, owner: str) -> int:
        """Return the use of an owner."""
        return self._used.get(owner, 0)

    def add(self, owner: str, amount: int) -> None:
        """Add an amount, which may be negative, to the use of an owner."""
        self.total += amount
        left = self._used.get(owner, 0) + amount
        if left:
            self._used[owner] = left
        else:
            self._used.pop(owner, None)

    def share(self, owner: str) -> int:
        """Return an even share of the limit among this owner and all owners that use some of it."""
        others = len(self._used) - (owner in self._used)
        return max(1, self.limit // (others + 1))

    def has_even_share(self, owner: str) -> bool:
        """Return whether an owner uses an even share of the limit, or of the total use if that is smaller."""
        others = len(self._used) - (owner in self._used)
        return self.used(owner) >= min(self.limit, self.total) / (others + 1)

    def available(self, owner: str) -> bool:
        """Return whether an owner may use more."""
        used = self._used.get(owner, 0)
        if self._per_owner is not None and used >= self._per_owner:
            return False
        return self.total < self.limit or used < self.share(owner)
