"""Why a model, or a run of it, has no plan."""


class NotPlannable(Exception):
    """What the full engine computes cannot be had from one plain backward pass with a few factors."""


class PlanDiffers(Exception):
    """The model does something else than in the run that the plan was learnt from."""
