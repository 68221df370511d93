"""Sweeps that lose no work: every cell of a grid is trained once, whatever is killed on the way.

Reading order: `grid` (what is asked: a file becomes cells, each a RunConfig), `units` (which cells train
together), `store` (the truth: one SQLite file of claims and results) and `repair` (when its bytes have
changed), `owners` (whose a claim is), `driver` (`trimtab.sweep`: fills the store, keeps workers alive),
`worker_server` (forks them with torch loaded), `worker` (claim, train, commit), `extension` (a sweep's file
with more in it). The driver and the workers share nothing but the store and one pipe.
"""
