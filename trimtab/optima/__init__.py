"""Does it transfer? From the runs of a sweep to an optimum with its interval at each size, its drift, and a
verdict.

Read in this order: tables (which runs form a line of sizes), curves (what a loss looks like about its
minimum), windows (which rates such a curve can describe), fits (the optimum with its interval), drift (its
slope over sizes and the verdict), exponents and critical (over batch and tokens: against published rules, and
where the batch ends), advice (what went wrong, what to add), wording (the answer in sentences), transfers
(`trimtab.transfer`: all of it for each scheme), held_out (a measured exponent at a size it has not seen).
"""
