"""Makes the workers of `serve --workers` answer as one server: a call to any of them reaches the ones that it is about.

`siblings.py` calls the other workers over sockets of this machine, `sibling_server.py` answers them, and `routing.py`
has the table of the methods and their rules.
"""
