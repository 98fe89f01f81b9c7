"""Shares a limited resource among owners: slots, places in the queue, bytes, attachments."""


class Shares:
    """Counts how much of a limit each owner uses. A single owner may use the whole limit.

    Nothing is taken back from an owner. Instead, when the limit is reached, an owner with less than an even share may
    still use more, up to an even share, while the other owners wait until the total use is below the limit. So the uses
    move towards even shares. Until then, two owners together use at most 1 + 1/2 of the limit, and three at most
    1 + 1/2 + 1/3. `per_owner` is the largest use of any owner.
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
        """Return an even share of the limit among this owner and all owners that use part of the limit."""
        others = len(self._used) - (owner in self._used)
        return max(1, self.limit // (others + 1))

    def has_even_share(self, owner: str) -> bool:
        """Return whether an owner uses at least an even share of the limit, or of the total use if it is smaller."""
        others = len(self._used) - (owner in self._used)
        return self.used(owner) >= min(self.limit, self.total) / (others + 1)

    def available(self, owner: str) -> bool:
        """Return whether an owner may use more."""
        used = self._used.get(owner, 0)
        if self._per_owner is not None and used >= self._per_owner:
            return False
        return self.total < self.limit or used < self.share(owner)
