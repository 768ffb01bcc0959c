"""Two tabs of one person: they ask, cancel and upload at the same time, and each gets its own answer."""

import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from page.calls import call, call_until_answered, wait_until_ready
from page.tabs import serve
from page.test_server_load import make_image
from page.test_server_process import explain, read_rest, start_slow

pytest.importorskip("fastapi", reason="whyformer[page] is not installed")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address():
    with serve("demo/sentiment", "demo/shapes") as (_, address):
        wait_until_ready(address)
        yield address


def ask_together(count, function):
    """What a function returns to several threads that call it at the same moment."""
    gate = threading.Barrier(count)

    def run(number):
        gate.wait()
        return function(number)

    with ThreadPoolExecutor(count) as tabs:
        return list(tabs.map(run, range(count)))


def test_the_same_question_at_once_has_one_answer(address):
    for number in range(10):
        question = explain(number)
        bodies = {one.body for one in ask_together(4, lambda _, asked=question: call(address, "/api/explain", asked))}
        assert len(bodies) == 1
        assert call(address, "/api/explain", explain(number)).body in bodies


def test_a_tab_that_cancels_stops_its_own_question_alone(address):
    """Both ask the same; each has a job of its own."""
    first, job = start_slow(address, 50)
    second, other = start_slow(address, 50, position=1)
    assert job != other
    assert call(address, "/api/cancel", {"job": job}).json == {"cancelled": True}
    assert "E_PAGE_CANCELLED" in read_rest(first)
    assert "event: result" in read_rest(second)


def test_the_same_image_at_once_is_the_same_image(address):
    data = make_image(Random(1))
    replies = ask_together(8, lambda _: call_until_answered(address, "/api/image", data))
    names = [reply.json["image"] for reply in replies]
    assert len(set(names)) == 1
    question = {"model": 1, "input": {"image": names[0]}}
    assert call(address, "/api/explain", question).status == 200


def test_tabs_that_ask_and_go_away_leave_the_server_idle(address):
    connections = [start_slow(address, 60 + number, position=number)[0] for number in range(4)]
    for one in connections:
        one.close()
    assert call(address, "/api/explain", explain(70)).status == 200
