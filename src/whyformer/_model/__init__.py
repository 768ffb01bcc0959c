"""The model side: opening a model, and turning raw inputs into what it takes."""
