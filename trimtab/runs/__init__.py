"""One run: what it is, how it is trained alone or in a fleet, and what it gives.

Reading order: `config` (a run by its numbers), `catalogue` (names), `user_code` and `published_models`
(models that are not ours), `toml` (files), `losses`, `tasks` (a configuration made real: model, data, loss,
plan), `training` (one run), `fleet` (many at once), `fleet_groups` (who may train together), `fleet_graph`
(their forward), `row_optimizer` (their step), `fleet_or_single` (which of the two), `results`, `checkpoints`,
`loggers`, `arithmetic` (within what two runs have the same bits).
"""
