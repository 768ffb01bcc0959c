"""Where a bulk run happens: the engine, the device, and how many workers."""

import os
from dataclasses import dataclass

import torch
from torch import nn

from whyformer._bulk.engine import Engine, count_cores
from whyformer._bulk.pool import ProcessPool
from whyformer._bulk.settings import BulkSettings
from whyformer._bulk.worker import ModelSetup, ThisProcess
from whyformer._explain.explain import ModelLike
from whyformer._model import Model, find_device
from whyformer._model.loading import open as open_model
from whyformer._plain.peak_memory import free_memory
from whyformer.errors import ModelError

MAX_LOADERS = 8  # of each worker
MEMORY_PER_WORKER = 2**30  # bytes of activations and libraries, beside the weights


@dataclass(frozen=True)
class BulkSite:
    """Where the workers are."""

    engine: str
    device: torch.device
    workers: int | None  # None: as many as there are GPUs or cores
    can_be_sent: bool  # the model can be opened by other processes
    address: str | None = None  # of a Ray cluster

    @property
    def is_every_gpu(self) -> bool:
        """ "cuda" without a number means all of them."""
        return self.can_be_sent and str(self.device) == "cuda"


def choose_site(model: ModelLike, settings: BulkSettings) -> BulkSite:
    engine, workers, device = settings.engine, settings.workers, settings.device
    if isinstance(model, Model | nn.Module):
        if device is not None:
            raise ModelError("The model is already open. Pass device when opening it.", code="E_OPTION")
        first = find_device(model.module if isinstance(model, Model) else model)
        workers = workers if workers is not None or engine == "ray" else 1
        return BulkSite(engine, first, workers, can_be_sent=False, address=settings.address)
    try:
        return BulkSite(engine, torch.device(device or "cpu"), workers, can_be_sent=True, address=settings.address)
    except (RuntimeError, TypeError) as error:
        raise ModelError(f"There is no device {device!r} ({str(error)[:100]}).", code="E_DEVICE") from None


def open_here(model: ModelLike, site: BulkSite) -> Model:
    """The model in this process: on the device if the worker may be here, or else only to plan."""
    if isinstance(model, Model | nn.Module):
        return open_model(model)
    return open_model(model, device="cpu" if site.engine == "ray" else site.device)


def choose_engine(site: BulkSite, setup: ModelSetup, opened: Model, shards: int) -> Engine:
    """The engine for this many shards."""
    if site.engine == "ray":
        from whyformer._bulk.ray_engine import RayEngine

        return RayEngine(
            setup.start, address=site.address, device=site.device.type, workers=site.workers, threads=setup.threads
        )
    devices = list_worker_devices(site, opened, setup.threads)[:shards]
    if len(devices) <= 1:
        return ThisProcess(setup.make_worker(opened), setup.threads)
    if site.can_be_sent and site.device.type != "cpu":  # ours, opened for the trial run; its memory is for the workers
        opened.module.to("cpu")
        free_memory()
    return ProcessPool(setup.start, devices)


def list_worker_devices(site: BulkSite, opened: Model, threads: int) -> list[str]:
    """A device for each worker: every GPU once, or the processor as often as cores and memory allow."""
    if site.is_every_gpu:
        found = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        count = site.workers or len(found)
        return [found[number % len(found)] for number in range(count)]
    if site.workers is not None:
        return [str(site.device)] * site.workers
    if site.device.type != "cpu":
        return [str(site.device)]
    weights = sum(tensor.numel() * tensor.element_size() for tensor in opened.module.state_dict().values())
    fitting = read_physical_memory() // (3 * weights + MEMORY_PER_WORKER)
    return ["cpu"] * max(1, min(count_cores() // threads, fitting))


def count_loaders(site: BulkSite) -> int:
    """Threads that load items in each worker: a GPU is faster than one of them."""
    if site.device.type != "cuda":
        return 1
    here = torch.cuda.device_count() if site.is_every_gpu and site.engine == "local" else 1
    return max(1, min(MAX_LOADERS, count_cores() // max(1, site.workers or here)))


def uses_loader_processes(site: BulkSite) -> bool:
    """Whether images are decoded in processes: next to a GPU, whose computation must not wait for the interpreter."""
    return site.device.type == "cuda"


def read_physical_memory() -> int:
    """Bytes; 8 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 8 * 2**30
