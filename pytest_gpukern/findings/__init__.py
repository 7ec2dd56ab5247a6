"""Says what else changed beside a time: reasons, grown resources, accuracy drift and a common shift.

Start with `findings.py`.
"""
