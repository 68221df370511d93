"""What must work where the wheel and torch are installed and nothing else: run by `make dist-check`.

python tests/support/torch_alone.py      in an environment of its own, outside the checkout
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

import trimtab

OTHERS = ("numpy", "scipy", "pandas", "plotly", "rich", "tyro", "pydantic", "sklearn", "transformers")
COMMANDS = (
    *("demo", "explain", "scale", "check", "train", "new", "sweep", "tune", "status", "retry"),
    *("transfer", "report", "limit", "data", "doctor", "version"),
)


class Block(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.fc = nn.Linear(n, n)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.fc(torch.relu(h))


def build(width: int, depth: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), *(Block(width) for _ in range(depth)), nn.Linear(width, 3))


def library() -> None:
    """A plan, its table, its optimizer, its check, its JSON and a step."""
    model, base, x = build(64, 4), build(16, 2), torch.randn(4, 8)
    p = trimtab.parametrize(model, base, example=x)
    optimizer = p.optimizer(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)
    model(x).square().mean().backward()
    p.clip_grad_norm_(1.0)
    optimizer.step()
    p.check(optimizer)
    assert "hidden" in str(p) and trimtab.Parametrization.from_json(p.to_json()).depth == p.depth == 2
    p.export("torchtitan", lr=1e-3)


def commands() -> None:
    """Help is given; every other command says in one line what to install."""
    program = str(Path(sys.executable).with_name("trimtab"))
    done = subprocess.run([program, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "trimtab sweep" in done.stdout, done
    for name in COMMANDS:
        done = subprocess.run([program, name], capture_output=True, text=True)
        assert done.returncode == 2 and "pip install tyro rich" in done.stderr, (name, done)
        assert "Traceback" not in done.stderr, done


if __name__ == "__main__":
    here = [name for name in OTHERS if importlib.util.find_spec(name) is not None]
    assert not here, f"this environment is not clean: {', '.join(here)}"
    assert "site-packages" in trimtab.__file__, f"not the installed package: {trimtab.__file__}"
    library()
    commands()
    print(f"trimtab {trimtab.__version__} with torch {torch.__version__} alone: good")
