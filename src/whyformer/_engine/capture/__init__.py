"""Capture: what a run and its backward passes leave behind."""

from whyformer._engine.capture.builder import LAYER_SCORE_SITES, STREAM_SITES, CaptureBuilder
from whyformer._engine.capture.capture import (
    Capture,
    CapturedValues,
    EngineChoice,
    EpilogueResults,
    LazyLayers,
    RoundingEstimate,
)
from whyformer._engine.capture.decompose import PARTS_FORMS
from whyformer._engine.capture.full_run import FullRunner, choose_passes
from whyformer._engine.capture.missing_attention import note_whole_attention
from whyformer._engine.capture.query_tiles import QueryTiles, iterate_rows
from whyformer._engine.capture.request import Declined, Epilogue, Runner, RunRequest, run_setting
from whyformer._engine.capture.residual import LinearNorm
from whyformer._engine.capture.run_facts import describe_run
from whyformer._engine.capture.sites import SITES
