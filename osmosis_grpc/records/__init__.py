"""What happened, for people and files: reading rollouts, evaluating agents, exporting samples."""
