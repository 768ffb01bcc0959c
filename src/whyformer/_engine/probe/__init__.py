"""The probe: the model on variants of the explained inputs."""

from whyformer._engine.probe.batching import chosen_batching
from whyformer._engine.probe.perturb import FILLS, IMAGE_FILLS, as_pixels, pick_examples, send_to_device
from whyformer._engine.probe.probe import Probe, read_hidden_states
