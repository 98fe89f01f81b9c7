"""What sandboxes in containers share: how programs run in one, and how its files are read and written."""
