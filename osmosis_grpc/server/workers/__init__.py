"""Makes the workers of `serve --workers` answer as one server: each worker passes calls on to the workers concerned.

`siblings.py` calls the other workers over sockets of this machine, `sibling_server.py` answers them, and `routing.py`
has the table of the methods and their rules.
"""
