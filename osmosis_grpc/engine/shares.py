"""How owners share what there is a limit of: slots, places in the queue, bytes, attachments."""


class Shares:
    """How much of a limit each owner uses. One owner alone may use all of it.

    Nothing is taken back from an owner who used it before others came. So an owner who has less than an even share
    gets more also where the limit is reached, up to that share; everybody else waits until less than the limit is used.
    In this way the uses move towards even shares. Meanwhile two owners use at most 1 + 1/2 of the limit together, three
    1 + 1/2 + 1/3. `per_owner` is the most that any owner may use, whatever is left.
    """

    def __init__(self, limit: int, per_owner: int | None = None) -> None:
        self.limit = limit
        self.total = 0
        """What all use together."""
        self._per_owner = per_owner
        self._used: dict[str, int] = {}

    def used(self, owner: str) -> int:
        """What an owner uses."""
        return self._used.get(owner, 0)

    def add(self, owner: str, amount: int) -> None:
        """An owner uses so much more, or less."""
        self.total += amount
        left = self._used.get(owner, 0) + amount
        if left:
            self._used[owner] = left
        else:
            self._used.pop(owner, None)

    def share(self, owner: str) -> int:
        """An even part of the limit, among this owner and all that use any."""
        others = len(self._used) - (owner in self._used)
        return max(1, self.limit // (others + 1))

    def has_its_part(self, owner: str) -> bool:
        """Whether an owner uses an even part of the limit, or of what is used where that is less than the limit."""
        others = len(self._used) - (owner in self._used)
        return self.used(owner) >= min(self.limit, self.total) / (others + 1)

    def room(self, owner: str) -> bool:
        """Whether an owner may use more."""
        used = self._used.get(owner, 0)
        if self._per_owner is not None and used >= self._per_owner:
            return False
        return self.total < self.limit or used < self.share(owner)
