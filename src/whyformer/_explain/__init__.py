"""The verbs that explain: explain, compare, explain_classes, inspect_attention, explain_generation."""
