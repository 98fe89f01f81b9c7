"""Two agent servers over HTTP and JSON that do the benchmarks' work, for comparison.

*sdk* has the request flow of the Osmosis SDK. *tuned* is the best that we reach with asyncio and the standard library's
json. Both speak the contract of docs/compatibility.md: they answer Init with 202 and run the loop in a task, every chat
carries the full history, replies carry `token_ids` and `logprobs` as JSON arrays, which the server records, and the
result is posted at the end. Neither imports the package. The bodies of *sdk* are those of tests/legacy/old_contract.py.
"""
