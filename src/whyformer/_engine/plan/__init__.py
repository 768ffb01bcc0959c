"""Planned runs: relevance of language models in memory that is linear in the tokens."""

from whyformer._engine.plan.runner import PlanRunner
