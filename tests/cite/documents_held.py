"""The same three documents in every form that people hold, and the libraries' own classes where they are installed."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

TEXTS = (
    "The Aurora sails under captain Anna. It left in March and carries tea.",
    "The lantern fair is held in Lisbon. It opens in May and sells tickets for 40 euros.",
    "The Orion left in June and is loaded with salt.",
)
IDS = ("ship-1", "fair-2", "ship-3")
METADATA = tuple({"page": n, "file": f"{id}.pdf"} for n, id in enumerate(IDS))
QUESTION = "Question: What does the Aurora carry?\nAnswer:"
ANSWER = " tea"


@dataclass
class PageDocument:
    """As of LangChain."""

    page_content: str
    metadata: dict[str, Any] = field(default_factory=dict)
    id: str | None = None


class TextNode:
    """As of LlamaIndex; `text` is missing in some of its nodes."""

    def __init__(self, text, metadata, node_id):
        self._text, self.metadata, self.node_id = text, metadata, node_id

    def get_content(self, metadata_mode=None):
        return self._text


def rows():
    return zip(IDS, TEXTS, METADATA, strict=True)


def make_node_with_score(id, text, metadata):
    node = TextNode(text, metadata, id)
    return SimpleNamespace(node=node, score=0.5, node_id=id, metadata=metadata, get_content=node.get_content, text=text)


def make_langchain(id, text, metadata):
    from langchain_core.documents import Document

    return Document(page_content=text, metadata=metadata, id=id)


def make_llama_index(id, text, metadata):
    from llama_index.core.schema import NodeWithScore
    from llama_index.core.schema import TextNode as Node

    return NodeWithScore(node=Node(text=text, metadata=metadata, id_=id), score=0.5)


FORMS = {
    "attributes of LangChain": lambda: [PageDocument(text, metadata, id) for id, text, metadata in rows()],
    "attributes of LlamaIndex": lambda: [TextNode(text, metadata, id) for id, text, metadata in rows()],
    "NodeWithScore": lambda: [make_node_with_score(*row) for row in rows()],
    "text": lambda: [{"id": id, "text": text, "metadata": metadata} for id, text, metadata in rows()],
    "page_content": lambda: [{"page_content": t, "id": id, "metadata": m} for id, t, m in rows()],
    "parts": lambda: [
        {"doc_id": id, "content": [{"type": "text", "text": text}], "metadata": m} for id, text, m in rows()
    ],
    "flat": lambda: [{"id": id, "passage": text, **metadata} for id, text, metadata in rows()],
    "nested": lambda: [{"node": {"id_": id, "text": text, "metadata": m}} for id, text, m in rows()],
    "serialised": lambda: [{"lc": 1, "kwargs": {"id": id, "page_content": t, "metadata": m}} for id, t, m in rows()],
    "tuples": lambda: list(rows()),
    "lists": lambda: [list(row) for row in rows()],
}
LIBRARIES = {"langchain_core": make_langchain, "llama_index.core": make_llama_index}
