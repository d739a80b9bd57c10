"""What the README shows is what happens."""

from pathlib import Path
import re


README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def test_the_decorator_of_the_readme_runs(capsys):
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    names = {}
    exec(compile(code, "README.md", "exec"), names)  # the test is that it runs
    state, batch = names["state"], names["model"].args[1]
    assert not names["train_step"].plan.warnings
    kernel = state["params"]["layers"][0]["mlp"]["up"]["kernel"]
    assert len(kernel.sharding.device_set) == 8
    assert {leaf.path for leaf in names["train_step"].plan.inputs} >= {f"[1][{n!r}]" for n in batch}
    assert "predicted step" in capsys.readouterr().out
