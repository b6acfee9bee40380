"""What the README says of one's own data and model runs as it is written there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import mpt as mpt_package
from tests.e2e._cli import document, mpt

README = Path(mpt_package.__file__).parents[1] / "README.md"


def test_the_readmes_own_data_and_model_train_with_its_command(tmp_path: Path) -> None:
    section = README.read_text().partition("## Your own data and model")[2].partition("\n## ")[0]
    files = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", section, re.DOTALL)
    for name, content in files:
        (tmp_path / name).write_text(content)
    assert [name for name, _ in files] == ["mydata.py", "mymodel.py"]
    (command,) = re.findall(r"```sh\nmpt (.*?)\n```", section, re.DOTALL)
    mpt(*shlex.split(command), "device=cpu", "run_dir=run", "trainer.max_steps=5", cwd=tmp_path)
    plan = document(tmp_path / "run" / "plan.json")
    assert (plan["data"]["shape"], plan["data"]["n_train"], plan["data"]["num_classes"]) == ([1, 8, 8], 400, 2)
    assert plan["params"] == 64 * 32 + 32 + 32 * 2 + 2
