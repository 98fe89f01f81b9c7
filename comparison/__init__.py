"""The comparison: what a trainer gets from each system, held against what one mock engine sampled.

The parts, in the order in which a rollout meets them: `cases` (what an agent does, and what is expected of it),
`agents` (the process in which unmodified openai clients run the cases),
`systems` (one adapter for each system under test),
`engine` (samples what `scripted` says, and logs it), `judge` (compares rows with the log), and `run`. It imports
nothing of osmosis_grpc outside `systems`.
"""
