"""The probe: the model on variants of the explained inputs."""

from whyformer._engine.probe.batching import RUNS_ALONE, chosen_batching
from whyformer._engine.probe.conduct import AT_RANDOM, CONDUCTS, SLOPES, see_conduct
from whyformer._engine.probe.perturb import FILLS, IMAGE_FILLS, as_pixels, pick_examples, send_to_device
from whyformer._engine.probe.probe import Probe, read_hidden_states
