"""The policies of a trainer, by name. The name in a chat decides which one answers it."""

from collections.abc import Iterator, Mapping

from osmosis_grpc.policies import Policy
from osmosis_grpc.policies.threads import check_policy
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.requests import check_policy_name

Policies = Policy | Mapping[str, Policy]
"""A policy, or several by name. The policy with the name "" answers the chats that name no policy."""


class PolicyTable:
    """The policies of one trainer.

    With `any_name`, the policy with the name "" answers every chat. Raises TypeError for a policy that is not callable,
    and ValueError for an empty mapping or an invalid name.
    """

    def __init__(self, policies: Policies, *, any_name: bool = False) -> None:
        named = dict(policies) if isinstance(policies, Mapping) else {"": policies}
        if not named:
            raise ValueError("policy: the mapping is empty; it needs at least one policy")
        for name, policy in named.items():
            try:
                check_policy_name(name, "policy")
            except InvalidArgument as error:
                raise ValueError(str(error)) from None
            check_policy(policy)
        self._named = named
        self._any_name = any_name

    def __iter__(self) -> Iterator[Policy]:
        """Yield each policy once, even if it has several names."""
        return iter({id(policy): policy for policy in self._named.values()}.values())

    def of(self, name: str) -> Policy:
        """Return the policy of a chat. Raises InvalidArgument with the field `policy` for an unknown name."""
        policy = self._named.get("" if self._any_name else name)
        if policy is None:
            names = ", ".join(map(repr, sorted(self._named)))
            only = ", the only one, for chats that name no policy" if names == "''" else ""
            raise InvalidArgument("policy", f"{name!r} is not a policy of this trainer; it has {names}{only}")
        return policy
