"""The Osmosis SDK's osmosis_ai.rollout.integrations."""
