"""The probe: the model on variants of the explained inputs."""
