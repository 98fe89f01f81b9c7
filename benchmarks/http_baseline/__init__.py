"""Two agent servers over HTTP and JSON that do the benchmarks' work, for comparison.

*sdk* has the request flow of the Osmosis SDK. *tuned* is the best that we reach with asyncio and the standard library's
json. Both use the contract of docs/compatibility.md. They answer Init with 202 and run the loop in a task. Every chat
has the full history. Replies have `token_ids` and `logprobs` as JSON arrays, and the server records both. The server
posts the result at the end. The two servers do not import the package. The bodies of *sdk* are the bodies of
tests/legacy/old_contract.py.
"""
