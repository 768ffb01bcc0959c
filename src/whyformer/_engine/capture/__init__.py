"""Capture: what a run and its backward passes leave behind."""

from whyformer._engine.capture.builder import LAYER_SCORE_SITES, STREAM_SITES, CaptureBuilder
from whyformer._engine.capture.capture import Capture, CapturedValues, LazyLayers, RoundingEstimate
from whyformer._engine.capture.decompose import PARTS_FORMS
from whyformer._engine.capture.query_tiles import iterate_rows
from whyformer._engine.capture.residual import LinearNorm
from whyformer._engine.capture.run_facts import describe_run
from whyformer._engine.capture.sites import SITES
