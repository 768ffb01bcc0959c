"""The methods that are used when the caller names none."""

DEFAULT_METHOD = "transformer_attribution"  # explain
DEFAULT_GENERATION_METHOD = "attcat"  # explain_generation
DEFAULT_CLASS_METHODS = (DEFAULT_METHOD, "grad_cam", "attcat", "lrp", "rollout")  # explain_classes
