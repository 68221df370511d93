"""What README.md shows runs as it is written there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.strip().splitlines()[-1][:40])
def test_the_code_runs_as_written(block, capsys):
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    if "print(p)" in block:
        assert "readout" in capsys.readouterr().out


def test_there_is_code():
    assert len(BLOCKS) >= 2 and all("import" in block for block in BLOCKS)
