"""Conversations as files (docs/export.md): with every branch, text, reasoning, time and figure, read page by page."""
