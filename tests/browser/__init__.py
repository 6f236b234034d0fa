"""The pages as people use them: Chromium on the real web process, real workers and a scripted llama-server.

Every test runs at `http://127.0.0.1` and at `http://chat.test`, which to the browser is a name of the LAN: plain http,
not a secure context. A page that writes an error to its console, or asks for anything of another site, fails its test.
"""
