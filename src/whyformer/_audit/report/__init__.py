"""What the rows of an audit amount to: statistics, verdict, pages and figures.

The door of this room: code outside of it imports from here.
"""

from whyformer._audit.report.findings import AuditFindings
from whyformer._audit.report.found_views import draw_found, render_found
from whyformer._audit.report.head_page import make_head_fragment, make_head_page
from whyformer._audit.report.page import MAX_SECTIONS, make_audit_fragment, make_audit_page
from whyformer._audit.report.summary import FAR_JSD, AuditRow, group_by_largest_weight

__all__ = [
    "FAR_JSD",
    "MAX_SECTIONS",
    "AuditFindings",
    "AuditRow",
    "draw_found",
    "group_by_largest_weight",
    "make_audit_fragment",
    "make_audit_page",
    "make_head_fragment",
    "make_head_page",
    "render_found",
]
