"""Signing in, joining and one's account, for browsers: small pages on allauth's own steps.

Limits, rules and errors are those of `/_allauth/`; nothing here decides who may do what by itself.
"""
