"""Who trains the units of a store: processes of this machine, or tasks of a Ray cluster.

Reading order: `choice` (which of the two), `job` (what an engine is told, and what the driver asks of it),
`local` (processes that claim for themselves), `parcels` (bytes that prove themselves on the way between
machines), `cluster` (Ray: the driver claims and commits, the nodes train), `cluster_task` (what runs on a
node), `shipment` (the user's files on their way to the nodes). Both engines train a unit by the same
`sweeps.attempts`.
"""
