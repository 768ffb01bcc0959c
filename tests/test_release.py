"""What is published: one version, links that work outside of the repository, workflows that call what is there."""

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read_toml(path: str) -> dict:
    return tomllib.loads((ROOT / path).read_text("utf-8"))


@pytest.fixture
def build_metadata(monkeypatch) -> ModuleType:
    """The hook; hatchling itself is not needed."""
    monkeypatch.setitem(
        sys.modules, "hatchling.metadata.plugin.interface", SimpleNamespace(MetadataHookInterface=object)
    )
    spec = importlib.util.spec_from_file_location("build_metadata", ROOT / "build_metadata.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_file_names_the_same_version():
    version = read_toml("pyproject.toml")["project"]["version"]
    for name in ("demo", "papers"):
        assert read_toml(f"{name}/pyproject.toml")["project"]["version"] == version
        extras = read_toml("pyproject.toml")["project"]["optional-dependencies"]
        assert extras[name] == [f"whyformer-{name}=={version}"]
    assert json.loads((ROOT / "codemeta.json").read_text("utf-8"))["version"] == version
    assert re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)[1] == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_links_of_the_published_readme_lead_to_the_repository(build_metadata, monkeypatch):
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://forge.example")
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/whyformer")
    hook, metadata = build_metadata.Addresses(), {"version": "1.2.3"}
    hook.root = str(ROOT)
    hook.update(metadata)
    text = metadata["readme"]["text"]
    targets = [*re.findall(r"\]\(([^)]+)\)", text), *re.findall(r'src="([^"]+)"', text)]
    assert targets and all(target.startswith(("https://", "#")) for target in targets)
    assert '<img src="https://forge.example/someone/whyformer/raw/v1.2.3/docs/images/hero.webp"' in text
    assert metadata["urls"]["Source"] == "https://forge.example/someone/whyformer"
    ours = [target.partition("/v1.2.3/")[2].partition("#")[0] for target in targets if "/v1.2.3/" in target]
    assert ours and all((ROOT / path).exists() for path in ours)


def test_a_build_outside_of_a_workflow_claims_no_address(build_metadata, monkeypatch):
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    hook, metadata = build_metadata.Addresses(), {"version": "1.2.3"}
    hook.root = str(ROOT)
    hook.update(metadata)
    assert "urls" not in metadata and metadata["readme"]["text"] == (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_and_files_that_are_there(workflow):
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    jobs = yaml.safe_load(workflow.read_text("utf-8"))["jobs"]
    lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert {target for line in lines for target in re.findall(r"\bmake ([a-z-]+)", line)} <= known
    assert all((ROOT / path).exists() for line in lines for path in re.findall(r"\btests/[\w./]+", line))


def test_the_workflows_take_the_packages_beside_it_along():
    tests, release = (
        (ROOT / ".github" / "workflows" / f"{name}.yml").read_text("utf-8") for name in ("tests", "release")
    )
    for installs in re.findall(r"uv pip install (.+)", tests):
        assert "--editable ./demo --editable ./papers" in installs
    assert release.count("pyproject.toml demo/pyproject.toml papers/pyproject.toml") == 1
    assert "for package in . demo papers; do python -m build" in release


def test_the_classifiers_are_the_versions_that_the_workflow_runs():
    classifiers = " ".join(read_toml("pyproject.toml")["project"]["classifiers"])
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8"))["jobs"]
    named = re.findall(r"Python :: (3\.\d+)", classifiers)
    assert named == jobs["linux"]["strategy"]["matrix"]["python"]
