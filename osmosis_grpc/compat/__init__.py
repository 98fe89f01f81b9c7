"""The names and the behaviour of older systems."""
