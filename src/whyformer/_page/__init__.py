"""The page: a local server for asking a model why, in a browser. `whyformer serve` starts it.

The server (app.py) checks every request (guard.py, bodies.py) and hands it to the process of a model (model_process.py,
worker.py), which answers with the library's public functions (answers/). Images are decoded in a process of their own
(decoding.py). Answers are kept by their content within a limit of memory (kept.py). docs/page.md says what is safe and
what is limited.

This process does not import torch: it is up in under a second.
"""
