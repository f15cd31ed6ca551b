"""One HTML file that says what a log shows, and how far it can be trusted."""

from cmp.report.writing import PARTS, write_report

__all__ = ["PARTS", "write_report"]
