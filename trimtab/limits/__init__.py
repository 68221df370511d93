"""The one bridge between finite networks and the theory.

Read in this order: powerlaws (how fast an error falls with size, and from which size on it is small),
approach (networks of several sizes beside the limit: how far off, how fast that falls, how large is large
enough), figures (the same as Plotly JSON).
"""
