"""Makes the workers of `serve --workers` answer as one server: each worker forwards calls to the right workers.

`siblings.py` calls the other workers over Unix sockets, `sibling_server.py` answers such calls, and `routing.py` has a
table that says which workers answer each method.
"""
