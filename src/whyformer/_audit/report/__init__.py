"""What the rows of an audit amount to: statistics, verdict, pages and figures.

The door of this room: code outside of it imports from here.
"""

from whyformer._audit.report.findings import AuditFindings, write_indented_json
from whyformer._audit.report.found_views import draw_found, render_found
from whyformer._audit.report.page import MAX_SECTIONS, make_audit_report
from whyformer._audit.report.summary import FAR_JSD
