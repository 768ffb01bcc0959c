"""What the verbs return: explanations, comparisons, class grids, attention views, generations."""
