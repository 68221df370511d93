"""Does it transfer? Runs of a sweep (sources, lines) to an optimum with its interval at each size (fits), its drift over
sizes (drift), what went wrong (signatures), what would decide (remedies), in words (wording). `trimtab.transfer` is in transfers.
"""
