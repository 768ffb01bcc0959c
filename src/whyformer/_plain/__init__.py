"""Ground floor: files, tokens, statistics, progress. Nothing here knows a model."""
