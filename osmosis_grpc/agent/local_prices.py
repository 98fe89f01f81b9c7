"""Keeps litellm off the network: without this variable, its import reads a list of prices, for up to 17 s."""

import os

LOCAL_PRICES = "LITELLM_LOCAL_MODEL_COST_MAP"


def use_local_prices() -> None:
    """Let litellm read the prices of its own package, unless the user has set the variable."""
    os.environ.setdefault(LOCAL_PRICES, "True")
