"""The engine: runs a shadow of the model under interception and captures what methods need."""
