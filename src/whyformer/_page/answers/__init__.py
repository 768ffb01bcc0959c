"""What a model answers to the questions of the page: in the model's process, by the library's public functions.

explaining      explain, compare: maps of scores, agreement of methods
predicting      probabilities, also of variants with something hidden; perturbation curves
writing         generate: an answer token by token; passages left out
citing          cite: the passages behind an answer
exporting       cases as a page, JSON or a notebook
describing      what a model takes and which methods work on it
inputs          what the page sends, as inputs of the library
units           tokens, words and sentences with their scores
recipes         any view as lines of Python
"""
