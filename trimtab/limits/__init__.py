"""The one bridge between finite networks and the theory: `approach` (how far off, how fast that falls, how
large is large enough), `powerlaws` (the fitted rates), `figures`.
"""
