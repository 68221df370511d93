"""How long a test waits for a process before it says that it hangs. A starved machine is no fault, so this is
long, and no test knows another bound; what must be quick is measured in benchmarks/ and experiments/."""

HANGS = 1200.0  # seconds; below pytest's own limit, which ends what waits for something else
