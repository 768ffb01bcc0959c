"""What belongs to the caller and a first call could touch: Python's random numbers, and where torch puts constants."""

import subprocess
import sys

import pytest

FIRST_CALLS = {
    "print": "print(why.explain(module, inputs, 'rollout'))",
    "compare": "print(why.compare(module, inputs, ['rollout', 'attnlrp']))",
}
SCRIPT = """
import random, sys
import torch
sys.path.insert(0, {tests!r})
from conftest import animal
module, inputs = animal("bert").module, animal("bert").inputs
import whyformer as why
before = random.getstate()
with {mode}:
    {call}
assert random.getstate() == before, "random"
from whyformer.show import colours
assert colours.RGB_TO_LMS.device.type == "cpu", "device"
"""


@pytest.mark.parametrize("mode", ["torch.no_grad()", 'torch.device("meta")'])
@pytest.mark.parametrize("call", FIRST_CALLS)
def test_the_first_call_of_a_process_leaves_the_caller_alone(call, mode, request):
    tests = str(request.config.rootpath / "tests")
    script = SCRIPT.format(tests=tests, call=FIRST_CALLS[call], mode=mode)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-800:]
