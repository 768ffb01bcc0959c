"""The audit: is attention an explanation here? Correlation, permutation, adversarial attention, and counter-tests.

import whyformer as why

result = why.audit("demo/sentiment", ["a gorgeous film", ...], attention="last")
print(result)
result.save("audit.html")
"""

from whyformer._audit.protocol import audit
from whyformer._audit.result import Audit
from whyformer._audit.settings import choose_audit_settings

__all__ = ["Audit", "audit", "choose_audit_settings"]
