"""Sweeps that lose nothing: grid (what), store (what happened), engine and workers (who does it)."""
