"""Builds what a release publishes, checks it, and prints what would be published. `make release` runs it.

sources.py copies the tree. python_packages.py builds the wheel and the sdist, client_packages.py the packages of
clients/. contents.py says what each may contain. Nothing here publishes anything.
"""
