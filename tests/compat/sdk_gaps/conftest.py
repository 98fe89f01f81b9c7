collect_ignore = ["agents"]
"""test_agents.py runs these tests, with another prefix."""
