"""NNGP and NTK of residual networks against neural-tangents, which is installed in a throw-away environment.

    python -m venv /tmp/nt
    /tmp/nt/bin/pip install neural-tangents==0.6.5 jax==0.4.30 jaxlib==0.4.30 tf2jax==0.3.6 "scipy<1.13"
    /tmp/nt/bin/python experiments/theory_neural_tangents.py --write kernels.npz
    python experiments/theory_neural_tangents.py --compare kernels.npz

(jax later than 0.4.30 has no jax.core.Jaxpr, which neural-tangents 0.6.5 imports.) The branch multiplier
L^-1/2 is put on the weights: a Dense layer with W_std = L^-1/2 in NTK parameterization has both its NNGP and
its NTK term times 1/L, as docs/theory.md, equation (27) has it.
"""

import argparse
import math

import numpy as np

DEPTHS = (1, 3, 10)
ACTIVATIONS = ("relu", "erf")


def inputs() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((5, 7))


def write(path: str) -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    import neural_tangents as nt
    from neural_tangents import stax

    x, found = inputs(), {"versions": np.array([nt.__version__, jax.__version__])}
    for activation in ACTIVATIONS:
        for depth in DEPTHS:
            phi = stax.Relu if activation == "relu" else stax.Erf
            branch = stax.serial(phi(), stax.Dense(1, W_std=1 / math.sqrt(depth)))
            block = stax.serial(stax.FanOut(2), stax.parallel(stax.Identity(), branch), stax.FanInSum())
            kernel_fn = stax.serial(stax.Dense(1), *[block] * depth, phi(), stax.Dense(1))[2]
            kernels = kernel_fn(x, None, ("nngp", "ntk"))
            found[f"{activation} {depth} nngp"], found[f"{activation} {depth} ntk"] = (
                np.asarray(kernels.nngp),
                np.asarray(kernels.ntk),
            )
    np.savez(path, **found)


def compare(path: str) -> None:
    from trimtab.theory import lazy

    found = np.load(path)
    print("neural-tangents, jax:", *found["versions"])
    for activation in ACTIVATIONS:
        for depth in DEPTHS:
            ours = lazy(inputs(), depth=depth, activation=activation)
            errors = [
                np.abs(getattr(ours, name) / found[f"{activation} {depth} {name}"] - 1).max()
                for name in ("nngp", "ntk")
            ]
            print(
                f"{activation:5s} L={depth:<3d} largest relative error: nngp {errors[0]:.1e}, "
                f"ntk {errors[1]:.1e}"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write")
    parser.add_argument("--compare")
    options = parser.parse_args()
    if options.write:
        write(options.write)
    if options.compare:
        compare(options.compare)
