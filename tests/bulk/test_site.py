"""Where a run happens: a device for each worker, and which engine that makes."""

import pytest
import torch

import whyformer as why
from whyformer._bulk import site
from whyformer._bulk.settings import BulkSettings
from whyformer._bulk.site import BulkSite, choose_site, list_worker_devices

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model():
    return why.open("demo/untrained-vit")


@pytest.mark.parametrize(
    ("device", "workers", "expected"),
    [
        ("cuda", None, ["cuda:0", "cuda:1", "cuda:2"]),
        ("cuda", 2, ["cuda:0", "cuda:1"]),
        ("cuda", 4, ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]),
        ("cuda:1", None, ["cuda:1"]),
        ("cuda:1", 2, ["cuda:1", "cuda:1"]),
        ("cpu", 3, ["cpu"] * 3),
        ("cpu", None, ["cpu"] * 8),
    ],
)
def test_a_worker_per_gpu_or_core(device, workers, expected, model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(site, "count_cores", lambda: 8)
    monkeypatch.setattr(site, "read_physical_memory", lambda: 2**40)
    place = BulkSite("local", torch.device(device), workers, True)
    assert list_worker_devices(place, model, threads=1) == expected


def test_threads_and_memory_limit_the_workers(model, monkeypatch):
    monkeypatch.setattr(site, "count_cores", lambda: 8)
    monkeypatch.setattr(site, "read_physical_memory", lambda: 2**40)
    assert len(list_worker_devices(BulkSite("local", CPU, None, True), model, threads=3)) == 2
    monkeypatch.setattr(site, "read_physical_memory", lambda: 4 * 2**30)
    assert len(list_worker_devices(BulkSite("local", CPU, None, True), model, threads=1)) == 3
    monkeypatch.setattr(site, "read_physical_memory", lambda: 1000)
    assert len(list_worker_devices(BulkSite("local", CPU, None, True), model, threads=1)) == 1


def test_a_model_that_is_open_stays_in_this_process(model):
    assert choose_site(model, BulkSettings()).workers == 1
    assert choose_site(model, BulkSettings(workers=2)).workers == 2
    assert choose_site("demo/untrained-vit", BulkSettings()).workers is None


@pytest.mark.parametrize(
    ("device", "workers", "expected"),
    [("cpu", None, 1), ("cuda", None, 5), ("cuda:1", None, 8), ("cuda", 1, 8), ("cuda", 20, 1)],
)
def test_the_workers_share_the_cores_for_loading(device, workers, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(site, "count_cores", lambda: 16)
    place = BulkSite("local", torch.device(device), workers, True)
    assert site.count_loaders(place) == expected
    assert site.uses_loader_processes(place) == (device != "cpu")
