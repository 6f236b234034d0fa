"""Conversations as files: out, with everything there is of them, and in, our own and those of llama-server's own page.

What is promised (docs/export.md has the format):

- What is exported here and imported again, here or on another site, is the same conversation: every branch, text,
  reasoning, time and figure; its ids are new.
- A file of llama-server's own page loses nothing either. What has no field here (attachments, calls of tools) is kept
  beside the message, told to its reader, and exported again.
- A file is imported as a whole or not at all, and what is here already is not imported again.
- Neither way holds more than one conversation in memory.

What is not: figures of imported answers count for nothing on this site; a model that is named need not be served here.
"""
