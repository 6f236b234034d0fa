"""The chat page: one address per conversation, one template, modules in `static/chat/`."""
