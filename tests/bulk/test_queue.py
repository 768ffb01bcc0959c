"""Who computes which shard: each is delivered or given up exactly once, whichever workers are lost."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from whyformer._bulk.queue import MAX_ATTEMPTS, ShardQueue, ShardTask


def make_queue(count: int) -> ShardQueue:
    return ShardQueue(ShardTask(number, ()) for number in range(count))


def test_a_worker_is_told_its_next_shard_in_advance():
    queue = make_queue(3)
    first = queue.take("a")
    assert (first.current.number, first.upcoming.number) == (0, 1)
    assert queue.finish("a").number == 0
    second = queue.take("a")
    assert (second.current.number, second.upcoming.number) == (1, 2)


def test_an_idle_worker_takes_a_shard_that_was_promised_to_another():
    queue = make_queue(2)
    queue.take("a")
    assert queue.take("b").current.number == 1
    queue.finish("a")
    assert queue.take("a") is None
    queue.finish("b")
    assert queue.is_finished


def test_the_shard_of_a_lost_worker_runs_again_first_and_is_given_up_in_the_end():
    queue = make_queue(5)
    for attempt in range(MAX_ATTEMPTS):
        assert queue.take(attempt).current.number == 0
        given_up = queue.lose(attempt)
    assert given_up.number == 0
    assert queue.take("next").current.number == 1


def test_a_worker_that_is_lost_while_it_waits_costs_nothing():
    queue = make_queue(1)
    assert queue.lose("a") is None
    assert queue.take("b").current.number == 0


@given(st.integers(0, 12), st.integers(1, 4), st.integers(0, 99))
def test_every_shard_ends_exactly_once(count, workers, seed):
    random, queue, ended = Random(seed), make_queue(count), []
    names = iter(range(10_000))
    alive = [next(names) for _ in range(workers)]
    while not queue.is_finished:
        for worker in list(alive):
            if worker not in queue.busy:
                queue.take(worker)
            elif random.random() < 0.3:
                alive[alive.index(worker)] = next(names)
                if (given_up := queue.lose(worker)) is not None:
                    ended.append(given_up.number)
            elif random.random() < 0.7:
                ended.append(queue.finish(worker).number)
    assert sorted(ended) == list(range(count)) and not queue.busy
