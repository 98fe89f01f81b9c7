"""The viewer: pages that show rollouts in a browser. `osmosis-grpc view` serves it.

app.py puts the pages together. guard.py checks each request. reads.py reads the source, and live.py updates open pages.
Each page has a module with its routes (rollouts.py, trajectory.py, server_page.py), and templates in templates/.
annotations.py has the labels and notes on the page of a rollout. docs/architecture.md shows how to add a page.
"""
