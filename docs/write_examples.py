"""The Python examples of each page as one file that can be run: python docs/write_examples.py FOLDER

What a page shows as the output of an example follows it as a comment. tests/test_docs.py runs the pages themselves.
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
FENCE = re.compile(r"^```(python|output)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def write_examples(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for page in PAGES:
        blocks = FENCE.findall(page.read_text("utf-8"))
        if page.name in ("index.md", "reference.md") or not any(kind == "python" for kind, _ in blocks):
            continue  # README again; parts that do not run alone
        parts = [code if kind == "python" else re.sub(r"^", "# ", code, flags=re.MULTILINE) for kind, code in blocks]
        path = folder / f"{page.stem}.py"
        path.write_text(
            f'"""The examples of {page.name}."""\n\n' + "\n\n".join(part.rstrip("# \n") for part in parts) + "\n",
            "utf-8",
        )
        written.append(path)
    return written


if __name__ == "__main__":
    for path in write_examples(Path(sys.argv[1])):
        print(path)
