"""The commands: one file each, with the command's options and what it does.

A command is a dataclass of options with a method `run` that returns the exit code; `trimtab.cli` lists them.
What is heavy (torch, pandas, rich) is imported inside `run` and in the helper files, so `trimtab --help`
loads none of it.

Reading order as a user meets them: `demo`, `explain`, `check` (with `made_up`, a batch where there is no
data), `train`, `new`, `sweep` (with `display`, its live progress), `status`, `retry`, `transfer` (with
`transfer_tables`), `report`, `limit` (with `limit_tables`), `data`, `doctor`. `options` has the types that
the options share.
"""
