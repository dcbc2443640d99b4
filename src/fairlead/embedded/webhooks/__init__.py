"""Admission webhooks: who is asked, with what, and what the answer does."""
