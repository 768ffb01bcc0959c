"""Planned runs: a backward plan learnt once from the full engine, then the model's own forward and plain autograd."""

from whyformer._engine.plan.cuda_kernels import Kernels, is_torch_used_elsewhere
from whyformer._engine.plan.runner import PlanRunner
