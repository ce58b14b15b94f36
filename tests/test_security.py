"""What is given never becomes code: not in Python, not in a shell, not in a page."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

import pytest

from apexbench import config as configs
from apexbench import plan as plans
from apexbench.image.planned import ImagePlan
from apexbench.runtimes.decide import Decision

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "workflow").rglob("*.py"))
RULES = [ROOT / "Snakefile", *sorted((ROOT / "workflow" / "rules").glob("*.smk"))]
# Called or imported, each of these turns data into code.
CALLS = {
    *("eval", "exec", "compile", "__import__"),
    *("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load"),
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("torch.load", "numpy.load", "np.load", "pandas.read_pickle", "pd.read_pickle"),
}
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


def name_of(node: ast.expr) -> str:
    """``a.b`` of a dotted expression; "" for another."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return ""


def dangers(text: str) -> list[str]:
    """What in the Python source ``text`` turns data into code."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            words = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if name_of(node.func) in CALLS and words.get("Loader") != "SafeLoader":
                found.append(name_of(node.func))
            if words.get("shell", "False") != "False":
                found.append(f"shell={words['shell']}")
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            found.append(str(node.module))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_data_becomes_code(path):
    assert dangers(path.read_text(encoding="utf-8")) == []


def test_the_scan_finds_what_it_looks_for():
    text = "import pickle\nyaml.load(x)\neval(x)\nsubprocess.run(x, shell=True)\ntorch.load(x)\n"
    assert sorted(dangers(text)) == ["eval", "pickle", "shell=True", "torch.load", "yaml.load"]


def shell_commands(text: str) -> list[str]:
    """The strings of every ``shell:`` of a rules file."""
    found = re.findall(r"^ *shell:\n((?: +f?\".*\"\n?)+)", text, re.MULTILINE)
    assert len(found) == len(re.findall(r"^ *shell:", text, re.MULTILINE))
    return ["".join(re.findall(r'"(.*)"', block)) for block in found]


# Each is shlex.join of words, below.
JOINED = ("APEXBENCH", "MEASURE", "BUILD", "PINS", "params.arguments", "params.measure")


def test_every_value_in_a_rule_s_shell_is_quoted():
    seen = 0
    for path in RULES:
        for command in shell_commands(path.read_text(encoding="utf-8")):
            for word in re.findall(r"(?<!\{)\{([^{}]+)\}", command):
                seen += 1
                assert word.endswith(":q") or word in JOINED, (path.name, word)
    assert seen > 15


def test_the_command_itself_is_words(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    hostile = "/opt/my python; touch pwned/bin/python"
    monkeypatch.setattr(plans.sys, "executable", hostile)
    for name in ("PYTHONPATH", "PYTHONNOUSERSITE", "APEXBENCH_THREADS", "APEXBENCH_RUN_ID"):
        monkeypatch.setenv(name, "1")  # which the plan sets for its jobs
    plan = plans.load(ROOT, {"preset": "quick"})
    for measuring in (False, True):
        words = shlex.split(plan.command(measuring=measuring))
        assert words[:4] == [hostile, "-P", "-m", "apexbench"]
    words = shlex.split(plan.training_command(next(iter(plan.models))))
    assert words == shlex.split(plan.command(measuring=True))
    assert shlex.split(plan.build_command())[:4] == [hostile, "-P", "-m", "apexbench"]


def test_what_the_image_is_built_from_is_words(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    digest = f"sha256:{'0' * 64}"
    settings = configs.load(ROOT, {"image": {"architectures": ["9.0"], "digest": digest}})
    planned = ImagePlan(settings, Decision("docker", ""), ROOT)
    options = shlex.split(planned.arguments())
    assert options[:-1] == ["--runtime", "docker", "--recipe"]
    assert json.loads(options[-1])
    assert f"base={digest}" in shlex.split(planned.pins())
    hostile = "/my images/$(touch pwned).sif"
    settings = configs.load(ROOT, {"image": {"sif": hostile}})
    planned = ImagePlan(settings, Decision("apptainer", ""), ROOT)
    assert shlex.split(planned.arguments()) == ["--sif", hostile]


def test_templates_escape_by_default():
    text = (ROOT / "workflow/apexbench/report/html.py").read_text(encoding="utf-8")
    assert re.search(r"autoescape\s*=\s*True", text)
    for template in (ROOT / "workflow/report").rglob("*.j2"):
        assert "autoescape false" not in template.read_text(encoding="utf-8")
