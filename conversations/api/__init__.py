"""REST under `/api/v1/`, and answers as server-sent events."""
