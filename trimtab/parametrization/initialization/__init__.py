"""The law the weights were drawn from: `init_laws` (the known ones, pure arithmetic), `base_draws` (the base,
measured once), `init_measurement` (the model against it).
"""
