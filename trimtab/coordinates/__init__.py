"""The coordinate check (`trimtab.check`): do a few steps move the network alike at every width and depth?

Read in this order: quantities (what is measured in a forward), trials (build, train and measure at one size),
profiles (the measurements as lines over size), equal_forms (which of two equal ways a multiplier was
written), slopes (a log-log slope with its interval), expectations (what each slope should be), verdicts
(PASS, FAIL, the culprits), figures, curvature (sharpness in the optimizer's metric), requirements (what is
refused before any work), checks (`check` itself).
"""
