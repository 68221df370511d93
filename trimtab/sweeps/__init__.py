"""Sweeps that lose no work: every cell of a grid is trained once, whatever is killed on the way.

Reading order: `grid` (what is asked: a file becomes cells, each a RunConfig), `search` (its table [search]),
`units` (which cells train together), `store` (the truth: one SQLite file of claims and results) and `repair`
(when its bytes have changed), `owners` (whose a claim is), `driver` (fills the store, keeps workers alive),
`rounds` (cells that are listed, asked for in rounds), `worker_server` (forks workers with torch loaded),
`worker` (claim, train, commit), `extension` (a sweep's file with more in it). `attempts` is one attempt at a
unit, whoever makes it; `engines` are who does: processes of this machine, or tasks of a Ray cluster.
"""
