"""What the infinite network does: lazy kernels, dynamical mean field theory, and the finite networks beside
it.

`lazy` gives the kernels at initialisation, `solve` the training dynamics of the infinitely wide (and deep)
network, `linear` the same exactly for deep linear networks, `simulate` an ensemble of finite networks with
the same arguments and fields, `sweep_rates` the best rate and the stable edge in the limit, `fluctuate` how
networks scatter around it at initialisation (arXiv 2309.16620).

Read in this order: problem (the arguments in the units of the limit), activations, losses, optimizers; gauss
and lazy_limit; dynamics (one causal pass of training, finite or infinite); finite and conditioned (networks
of width N); fields, anchor and dmft (the infinite network); depths (infinite depth by extrapolation);
deeplinear (an exact second opinion); fluctuations, rates; results (what every solver returns).
"""

from trimtab.theory.deeplinear import linear
from trimtab.theory.dmft import solve
from trimtab.theory.finite import simulate
from trimtab.theory.fluctuations import fluctuate
from trimtab.theory.lazy_limit import lazy
from trimtab.theory.rates import sweep_rates

__all__ = ["fluctuate", "lazy", "linear", "simulate", "solve", "sweep_rates"]
