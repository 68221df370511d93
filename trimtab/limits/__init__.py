"""The one bridge between finite networks and the theory.

Read in this order: approach (trains networks of several sizes beside the limit), comparison (how far off, how
fast that falls, how large is large enough), powerlaws (how fast an error falls with size, and from which size
on it is small), best_rates (the same of the best learning rate), results (what was found, in words), figures
(the same as Plotly JSON).
"""
