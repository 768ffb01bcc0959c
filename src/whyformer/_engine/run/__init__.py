"""Running a model: a shadow of it under interception, interventions, and what the model's code does besides."""
