"""Old names keep working and warn with the new name, at the line that uses them."""

import pytest

from whyformer._plain.deprecation import rename_keywords, warn_renamed


@rename_keywords(picture="image", longest="max_length")
def show(image: str, max_length: int = 3) -> tuple[str, int]:
    """Return the arguments."""
    return image, max_length


def test_an_old_keyword_is_passed_under_its_new_name():
    with pytest.warns(DeprecationWarning, match=r"picture= of show\(\) is now image=") as caught:
        assert show(picture="cat") == ("cat", 3)
    assert caught[0].filename == __file__


def test_new_keywords_do_not_warn():
    assert show("cat", max_length=4) == ("cat", 4)  # a warning would be an error in these tests


def test_several_old_keywords():
    with pytest.warns(DeprecationWarning, match=r"of show\(\) is now") as caught:
        assert show(picture="cat", longest=5) == ("cat", 5)
    assert len(caught) == 2


def test_the_function_keeps_its_name_and_docstring():
    assert (show.__name__, show.__doc__) == ("show", "Return the arguments.")


def test_the_message_says_when_the_old_name_goes():
    with pytest.warns(DeprecationWarning, match=r"a is now b\. The old spelling will be removed in the next version\."):
        warn_renamed("a", "b")
