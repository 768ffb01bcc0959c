"""Programs: runs that were recorded, and are repeated without the model's Python code."""
