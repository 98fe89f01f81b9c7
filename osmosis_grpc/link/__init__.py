"""The parts that both ends of a connection share: channels, credentials, handlers, frame streams, the target policy.

This package exports nothing: its modules are internal. osmosis_grpc.server and osmosis_grpc.trainer export the public
names.
"""
