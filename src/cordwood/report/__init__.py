"""Plans, results and verdicts as text for terminals and HTML for notebooks. Importing it registers all presenters."""

from cordwood.report import clean, plan, verify

__all__ = ["clean", "plan", "verify"]
