"""Two agent servers over HTTP and JSON that do the benchmarks' work, to be compared with.

*sdk* is the old Osmosis SDK's request flow, *tuned* the best that HTTP and JSON do in Python with
asyncio and the standard library's json. Both know the contract of docs/compatibility.md: Init is
answered 202 and the loop runs in a task, every chat carries the full history, replies carry
`token_ids` and `logprobs` as JSON arrays and the server records them, the result is posted in the
end. Neither imports the package. The bodies of *sdk* are those of tests/legacy/old_contract.py.
"""
