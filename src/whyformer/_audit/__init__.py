"""The audit: is attention an explanation here? Correlation, permutation, other attention, and the counter-tests.

import whyformer as why

found = why.audit("demo/sentiment", ["a gorgeous film", ...], attention="last")
print(found)
found.save("audit.html")
"""

from whyformer._audit.protocol import TESTS, audit
from whyformer._audit.result import Audit

__all__ = ["TESTS", "Audit", "audit"]
