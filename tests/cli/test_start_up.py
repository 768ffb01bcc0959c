"""The command line starts fast: what a command does not need is not imported."""

import subprocess
import sys

import pytest

HEAVY = {
    "PIL", "datasets", "matplotlib", "numpy", "pandas", "polars", "pyarrow", "ray", "safetensors", "scipy",
    "sklearn", "tokenizers", "torch", "torchvision", "transformers",
}  # fmt: skip
OWN = {"whyformer._audit", "whyformer._bulk", "whyformer._judge", "whyformer._summary", "whyformer.metrics"}


def list_imported(*arguments: str) -> set[str]:
    """The packages and rooms that a command of whyformer imports in a fresh process."""
    code = (
        "import sys\n"
        "try:\n"
        "    import whyformer\n"
        f"    if {list(arguments)!r}:\n"
        "        from whyformer.cli import app\n"
        f"        app({list(arguments)!r})\n"
        "finally:\n"
        "    print('\\n', *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return set(done.stderr.rpartition("\n \n")[2].split() or done.stderr.split())


@pytest.mark.parametrize("arguments", [(), ("--help",), ("bulk", "--help"), ("--version",)], ids=" ".join)
def test_nothing_heavy_is_imported_for_help(arguments):
    imported = list_imported(*arguments)
    assert "whyformer" in imported and not imported & (HEAVY | OWN)


@pytest.mark.slow
def test_the_list_of_methods_needs_torch_only():
    imported = list_imported("methods")
    assert {"torch", "whyformer.methods"} <= imported
    assert not imported & ((HEAVY | OWN) - {"PIL", "numpy", "safetensors", "torch"})


@pytest.mark.slow
def test_a_text_is_explained_without_what_draws_judges_or_reads_tables():
    imported = list_imported("explain", "-M", "demo/sentiment", "a gorgeous film")
    assert "whyformer._explain.explain" in imported
    assert not imported & (OWN | {"datasets", "matplotlib", "pandas", "polars", "pyarrow", "ray"})


def test_the_package_can_be_run_as_a_module():
    done = subprocess.run([sys.executable, "-m", "whyformer", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("whyformer ")
    wrong = subprocess.run([sys.executable, "-m", "whyformer", "explian"], capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr.startswith("error[E_USAGE]")
