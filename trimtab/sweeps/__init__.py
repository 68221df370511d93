"""Sweeps that lose no work: every cell of a grid is trained once, whatever is killed on the way.

Reading order: `config` (what a sweep is, and its cells, each a RunConfig), `grid` (a file becomes one),
`toml_keys` (what its keys may be), `horizons` and `search` (batch and length; the table [search]), `units`
(which cells train together), `store` (the truth: claims and results), `database` (its SQLite file),
`row_checksums` (whether a row is what was written), `cell_table` (its cells as a table), `repair` (when its
bytes have changed), `claim_owners` (whose a claim is), `placement` (which device), `driver` (fills the store,
keeps workers alive), `rounds` (cells that are listed, asked for in rounds), `worker_server` (forks workers
with torch loaded), `worker` (claim, train, commit), `extension` (a sweep's file with more in it). `attempts`
is one attempt at a unit, whoever makes it; `engines` are who does: processes of this machine, or tasks of a
Ray cluster.
"""
