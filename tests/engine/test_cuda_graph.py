"""Captures of CUDA graphs: what they leave behind, tried with stand-ins for what torch does on a GPU."""

import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from whyformer._engine.plan import cuda_kernels as cuda_graph
from whyformer._engine.plan.cuda_kernels import Kernels, hidden_from_transformers, is_torch_used_elsewhere

GPU = torch.device("cuda", 0)


class FakeGenerator:
    """Has a state that captures may take, as up to torch 2.11."""

    def __init__(self, state=None):
        self.state = state or SimpleNamespace(is_capturing=False)

    def graphsafe_get_state(self):
        return FakeGenerator(self.state)

    def graphsafe_set_state(self, other):
        self.state = other.state

    def clone_state(self):
        return FakeGenerator(SimpleNamespace(is_capturing=False))

    def draw(self):
        if self.state.is_capturing:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")


class FakeGraph:
    """Takes the state of the default generator, and gives it back unless the capture failed."""

    is_broken = False

    def capture_begin(self, pool, capture_error_mode):
        self.taken = torch.cuda.default_generators[0].state
        self.taken.is_capturing = True

    def capture_end(self):
        if FakeGraph.is_broken:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.taken.is_capturing = False


@pytest.fixture
def gpu(monkeypatch):
    found = SimpleNamespace(generator=FakeGenerator(), ended=[])
    stand_ins = {
        "CUDAGraph": FakeGraph,
        "Stream": lambda device: None,
        "device": lambda device: nullcontext(),
        "stream": lambda stream: nullcontext(),
        "graph_pool_handle": lambda: (0, 1),
        "synchronize": lambda: None,
        "current_device": lambda: 0,
        "default_generators": (found.generator,),
    }
    for name, value in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(cuda_graph, "end_pool_of_failed_capture", lambda *args: found.ended.append(args))
    monkeypatch.setattr(cuda_graph, "FAILED", [])
    monkeypatch.setattr(FakeGraph, "is_broken", False)
    return found


def test_random_numbers_are_drawn_during_and_after_a_capture(gpu):
    before = gpu.generator.state
    kernels = Kernels(lambda: [gpu.generator.draw()], GPU)
    gpu.generator.draw()
    assert gpu.generator.state is before and kernels.graph.taken is not before and not gpu.ended


def test_a_capture_that_fails_leaves_nothing_behind(gpu):
    def fail():
        FakeGraph.is_broken = True
        raise RuntimeError("operation not permitted when stream is capturing")

    before = gpu.generator.state
    with pytest.raises(RuntimeError):
        Kernels(fail, GPU)
    gpu.generator.draw()
    assert gpu.generator.state is before and gpu.ended == [(0, (0, 1))] and len(cuda_graph.FAILED) == 1
    assert not cuda_graph.CAPTURING.locked()
    FakeGraph.is_broken = False
    assert Kernels(lambda: [1], GPU).results == [1]


def test_what_fails_in_a_good_capture_is_raised_and_its_memory_is_the_graphs(gpu):
    def run_out():
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(torch.OutOfMemoryError):
        Kernels(run_out, GPU)
    assert not gpu.ended and not cuda_graph.FAILED


@contextmanager
def run_beside(work):
    """Inside, a thread calls work(stop) and has begun."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    time.sleep(0.02)
    try:
        yield
    finally:
        stop.set()
        thread.join()


def train(stop):
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 1))
    optimiser = torch.optim.SGD(net.parameters(), 0.01)
    while not stop.is_set():
        net(torch.randn(4, 8)).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()


def draw(stop):
    while not stop.is_set():
        torch.randn(100)


@pytest.fixture
def quiet(monkeypatch):
    """Threads that other tests left behind do not count."""
    there = set(cuda_graph.frames_of_threads())
    frames_of_threads = cuda_graph.frames_of_threads
    monkeypatch.setattr(
        cuda_graph,
        "frames_of_threads",
        lambda: {thread: frame for thread, frame in frames_of_threads().items() if thread not in there},
    )


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("work", [train, draw])
def test_a_thread_that_uses_torch_is_noticed_at_any_time(work):
    with run_beside(work):
        for _ in range(50):
            assert is_torch_used_elsewhere()
            time.sleep(0.001)
    assert not is_torch_used_elsewhere()


@pytest.mark.usefixtures("quiet")
def test_a_thread_that_waits_is_no_obstacle():
    with run_beside(lambda stop: stop.wait(10)):
        assert not is_torch_used_elsewhere()


def test_transformers_does_not_see_a_capture_of_this_thread(monkeypatch):
    import transformers  # noqa: F401

    library = sys.modules["transformers.utils.import_utils"]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    before, elsewhere = library.is_cuda_stream_capturing, []
    assert library.is_tracing()
    with hidden_from_transformers():
        assert not library.is_tracing()
        thread = threading.Thread(target=lambda: elsewhere.append(library.is_tracing()))
        thread.start()
        thread.join()
    assert elsewhere == [True] and library.is_cuda_stream_capturing is before
