"""The scripted llama-server's parts: it behaves as the real one does, and says what the test wants said.

`tokens` (tokenizer and chat template) · `script` (what it answers, and its faults) · `engine` (slots, batches,
deferral) · `streams` (resumable streams) · `sse` (the chunks of an answer) · `web` (HTTP on a socket) · `routes`.
The conformance suite (tests/test_llama_conformance.py) holds it to the real server; `tests.fake_llama` runs it.
"""
