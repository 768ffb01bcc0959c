"""What a caller of bulk() or cite_log() asked for, besides model, data and methods: checked once, then passed on."""

from dataclasses import dataclass

import torch

from whyformer._model import check_windows
from whyformer._runs.arguments import check_run_counts, check_run_flag
from whyformer.errors import InputError

ENGINES = ("local", "ray")
FLAGS = ("truncate", "maps", "check", "retry_failed", "grow")
COUNTS = ("workers", "batch_size", "memory", "shard", "threads", "loaders", "limit")


@dataclass(frozen=True)
class BulkSettings:
    """None: as the run in the folder was begun, or what suits the machine."""

    device: str | torch.device | None = None
    engine: str = "local"
    workers: int | None = None
    address: str | None = None
    batch_size: int | None = None
    memory: int | None = None
    shard: int | None = None
    threads: int | None = None
    loaders: int | None = None
    limit: int | None = None
    truncate: bool = False
    windows: bool | int = False
    maps: bool = False
    check: bool = False
    retry_failed: bool = False
    grow: bool = False

    def __post_init__(self) -> None:
        for name in FLAGS:
            check_run_flag(name, getattr(self, name))
        check_run_counts(**{name: getattr(self, name) for name in COUNTS})
        object.__setattr__(self, "windows", check_windows(self.windows))
        for name in ("truncate", "check"):
            if getattr(self, name) and self.windows is not False:
                raise InputError(f"{name} and windows cannot be combined. Choose one.", code="E_OPTION")
        if self.grow and self.limit is not None:
            raise InputError("grow and limit cannot be combined: a larger sample is another one.", code="E_OPTION")
        if self.engine not in ENGINES:
            raise InputError(f"There is no engine {self.engine!r}. Available: {', '.join(ENGINES)}.", code="E_OPTION")
        if self.address is not None:
            self._check_address(self.address)

    def _check_address(self, address: str) -> None:
        if not isinstance(address, str) or not address.strip():
            raise InputError(f"address must be that of a Ray cluster, got {address!r}.", code="E_OPTION")
        if "://" in address:
            raise InputError(
                f"address must be HOST:PORT or auto, got {address!r}. Run the call on a machine of the cluster; Ray "
                "Client is not supported.",
                code="E_OPTION",
            )
        if self.engine != "ray":
            raise InputError("address is for engine='ray' only.", code="E_OPTION")
