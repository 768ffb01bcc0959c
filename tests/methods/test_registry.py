"""The registry of methods: old spellings keep working."""

import pytest

from whyformer.methods._registry import METHODS, method


def test_also_is_the_old_name_of_extra_needs():
    def old_method(input_grad, hidden=None, *, at="input"):
        return input_grad

    try:
        with pytest.warns(DeprecationWarning, match=r"also= of method\(\) is now extra_needs=") as caught:
            method(paper="", class_specific=True, signed=True, also={"at": ("hidden",)})(old_method)
        registered = METHODS["old_method"]
    finally:
        METHODS.pop("old_method", None)
    assert [warning.filename for warning in caught] == [__file__]
    assert registered.needs_with({"at": 1}) == ("input_grad", "hidden")
