"""What is known of every tensor of a run: which operation made it, and which example and token it belongs to."""
