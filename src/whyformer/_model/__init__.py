"""Models: open them, and turn images, texts and tensors into their inputs."""
