"""What the papers print, beside the same measured here: one file for each document.

    run_document(DOCUMENTS["chefer"], Request())          on the bundled model and generated data
    run_document(DOCUMENTS["chefer"], Request(data, model))

A document is a paper, or a text about one. Its file has its name, what it runs, and the published numbers, each table
marked as from the paper, from the authors' files, or from a third party's rerun.
"""

from whyformer_papers.document import Document, DocumentReproduction, Request, Section, run_document
from whyformer_papers.documents import DOCUMENTS, find_document

__all__ = ["DOCUMENTS", "Document", "DocumentReproduction", "Request", "Section", "find_document", "run_document"]
