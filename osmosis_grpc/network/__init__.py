"""The code that both ends of a connection share: channels, credentials, handlers, frame streams, the target policy.

The modules of this package are internal, and it exports nothing. osmosis_grpc.server and osmosis_grpc.trainer export
the public names.
"""
