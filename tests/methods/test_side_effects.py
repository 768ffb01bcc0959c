"""What belongs to the caller stays as it was: environment variables, and the random numbers of Python and numpy.

In a fresh process, since a library sets variables only when it is imported for the first time.
"""

import ast
import subprocess
import sys
from pathlib import Path

import whyformer

TESTS = Path(__file__).parent.parent

CODE = """
import os, random, sys
import numpy, torch
sys.path.insert(0, {tests!r})
from conftest import QUICK, animal
import whyformer as why


def describe():
    states = random.getstate(), numpy.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()
    return dict(os.environ), states


def watch(name, compute):
    before = describe()
    compute()
    assert describe() == before, name


def watch_methods(names):
    for name in names:
        watch(name, lambda: why.explain(model, encoded, name, target=0, **QUICK.get(name, {{}})))


def watch_metrics(names):
    from test_every_metric import given, measured
    for name in names:
        inputs = "texts" if why.METRICS[name].only == "texts" else "images"
        given(inputs)
        watch(name, lambda: measured(name, inputs))


def run_in_child(work, names):
    # in a copy of this process, which has imported neither library
    child = os.fork()
    if child == 0:
        try:
            work(names)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, names


torch.set_num_threads(1)
model = why.open(animal("encoder").module)
encoded = model.encode(animal("encoder").inputs)
why.explain(model, encoded, "rollout", target=0)  # imports what every explanation needs
assert "sklearn" not in sys.modules and "scipy.sparse" not in sys.modules, "the test would see nothing"
run_in_child(watch_methods, ["attention_flow", "kernel_shap"])
run_in_child(watch_methods, ["lime"])
run_in_child(watch_metrics, ["mean_average_precision", "auprc", "road", "class_discrimination"])
"""


def test_what_imports_a_library_leaves_the_process_as_it_was():
    code = CODE.format(tests=str(TESTS))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_function_that_imports_scikit_learn_keeps_the_environment():
    found = []
    for file in Path(whyformer.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            body = node.body if isinstance(node, ast.FunctionDef) else []
            if any(isinstance(line, ast.ImportFrom) and (line.module or "").startswith("sklearn") for line in body):
                assert "keep_environment()" in map(ast.unparse, node.decorator_list), f"{node.name} in {file.name}"
                found.append(node.name)
    assert {"solve_shapley_values", "fit_ridge", "cluster_maps"} <= set(found)


def test_nothing_but_a_function_imports_scikit_learn():
    for file in Path(whyformer.__file__).parent.rglob("*.py"):
        at_the_top = [
            ast.unparse(line) for line in ast.parse(file.read_text()).body if isinstance(line, ast.ImportFrom)
        ]
        assert not [line for line in at_the_top if line.startswith("from sklearn")], file.name
